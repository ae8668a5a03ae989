"""Resuming an earlier task: the session of its agent, and its work tree if that was stored."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Attempt, Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import PRINTABLE

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE)]
STORES_OWN_SESSIONS: Final = "acp"
"""The kind of harness whose agents store their sessions themselves: ACP reports only the id of a session, no file."""


class Resume(Model):
    """What an attempt of an earlier task has stored, for a new task of the same project to resume.

    The session and the work tree are references to artifacts. They are valid as long as the artifacts are stored, even
    after the record of the earlier task was deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    attempt: Attempt
    sandbox: SafeName
    """The sandbox of that attempt. The subjects of the artifacts contain its name."""
    harness: Literal["claude", "openhands", "acp"]
    """The kind of harness of that attempt. Another kind can't read the session."""
    session_id: SessionId
    transcript: ArtifactRef | None = None
    """The last stored state of the session; None for an agent that stores its sessions itself."""
    work: ArtifactRef | None = None
    """The work tree, as a compressed tar archive. If it is None, the new task begins with an empty work tree."""
    fork: bool = False
    """Whether to begin a new session with the same history. Otherwise the same session continues."""

    @model_validator(mode="after")
    def _has_session(self) -> Self:
        if self.transcript is None and self.harness != STORES_OWN_SESSIONS:
            raise ValueError(f"transcript: {self.harness} can't resume without one, and there is none")
        return self
