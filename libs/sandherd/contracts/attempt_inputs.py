"""What a new attempt gets from the previous attempt, in a file that the worker reads in addition to the task."""

from typing import Literal

from pydantic import ConfigDict

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Attempt, Model
from sandherd.contracts.names import SafeName


class StoredSession(Model):
    """The last stored state of an agent's session."""

    model_config = ConfigDict(frozen=True)

    session_id: str
    artifact: ArtifactRef


class Previous(Model):
    """The previous attempt: why it failed, and what it stored, under the subjects of its sandbox."""

    model_config = ConfigDict(frozen=True)

    attempt: Attempt
    sandbox: SafeName
    error: str | None = None
    error_type: str | None = None
    work: ArtifactRef | None = None
    """The work tree, as a compressed tar archive."""
    transcript: ArtifactRef | None = None
    """The terminal output."""
    session: StoredSession | None = None
    """The session of the agent, which the new attempt resumes if `use` is `restore`."""
    use: Literal["offer", "restore"] = "offer"
    """How the new attempt gets the work tree, as `on_retry` of the task."""
