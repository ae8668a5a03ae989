"""Resuming an earlier task: its agent's session, and its work tree where one was stored."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Attempt, Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.patterns import PRINTABLE

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=PRINTABLE)]
STORES_OWN_SESSIONS: Final = "acp"
"""The protocol reports a session's id and no file: the agent itself stores the session."""


class Resume(Model):
    """What an attempt of an earlier task of the same project has stored, for a new task to resume.

    It has references to all of it, so it is valid for as long as that is stored, even if the task's record is deleted.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    attempt: Attempt
    sandbox: SafeName
    """The sandbox of that attempt: the references are under its subjects."""
    harness: Literal["claude", "openhands", "acp"]
    """The kind of its agent; another kind can't read the session."""
    session_id: SessionId
    transcript: ArtifactRef | None = None
    """The session as it was last stored; None for an agent that stores it itself."""
    work: ArtifactRef | None = None
    """The work tree, as a compressed tar archive; None: the new task begins with an empty one."""
    fork: bool = False
    """Whether to begin a new session with the same history. Otherwise the same session continues."""

    @model_validator(mode="after")
    def _has_session(self) -> Self:
        if self.transcript is None and self.harness != STORES_OWN_SESSIONS:
            raise ValueError(f"transcript: {self.harness} can't resume without one, and there is none")
        return self
