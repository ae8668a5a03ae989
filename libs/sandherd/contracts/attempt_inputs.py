"""What a new attempt is given of the previous one, in a file that the worker reads beside the task."""

from typing import Literal

from pydantic import ConfigDict

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Attempt, Model
from sandherd.contracts.names import SafeName


class StoredSession(Model):
    """An agent's session, as it was last stored."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    artifact: ArtifactRef


class Previous(Model):
    """The previous attempt: why it failed, and what it stored. The references are under its sandbox's subjects."""

    model_config = ConfigDict(frozen=True)

    attempt: Attempt
    sandbox: SafeName
    error: str | None = None
    error_type: str | None = None
    work: ArtifactRef | None = None
    """Its work tree, as a compressed tar archive."""
    transcript: ArtifactRef | None = None
    """Its terminal output."""
    session: StoredSession | None = None
    """The session that its agent can resume, if it is restored."""
    use: Literal["offer", "restore"] = "offer"
