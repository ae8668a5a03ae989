"""What a new attempt is given of the one before it: beside the task, in a file that the worker reads."""

from typing import Literal

from pydantic import ConfigDict

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt


class KeptSession(Model):
    """An agent's session, as it was put by last."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    artifact: ArtifactRef


class Previous(Model):
    """The attempt before: why it failed, and what it left. References lie under its sandbox's subjects."""

    model_config = ConfigDict(frozen=True)

    attempt: Attempt
    sandbox: SafeName
    error: str | None = None
    error_type: str | None = None
    work: ArtifactRef | None = None
    """Its work tree, as a compressed tar archive."""
    transcript: ArtifactRef | None = None
    """What its terminal showed."""
    session: KeptSession | None = None
    """What its agent can go on from, if it is restored."""
    use: Literal["offer", "restore"] = "offer"
