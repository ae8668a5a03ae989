"""Going on from an earlier task: its agent's session, and its work tree where one was kept."""

from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, StringConstraints, model_validator

from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt

SessionId = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]*$")]
KEEPS_ITSELF: Final = "acp"
"""The protocol tells a session's name and no file: it is the agent that keeps it."""


class Resume(Model):
    """What an attempt of an earlier task of the same project has left, for a new task to go on from.

    It says where all of it is, so that it is good for as long as that is kept, whoever has forgotten the task.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    task: SafeName
    attempt: Attempt
    sandbox: SafeName
    """Of that attempt: the references lie under its subjects."""
    harness: Literal["claude", "openhands", "acp"]
    """The kind of its agent: another kind can't read the session."""
    session_id: SessionId
    transcript: ArtifactRef | None = None
    """The session as it was put by last; None for an agent that keeps it itself."""
    work: ArtifactRef | None = None
    """The work tree, as a compressed tar archive; None: the new task begins with an empty one."""
    fork: bool = False
    """Whether it becomes a session of its own with the same beginning. Else the same session goes on."""

    @model_validator(mode="after")
    def _is_a_session(self) -> Self:
        if self.transcript is None and self.harness != KEEPS_ITSELF:
            raise ValueError(f"transcript: {self.harness} goes on from nothing else, and there is none")
        return self
