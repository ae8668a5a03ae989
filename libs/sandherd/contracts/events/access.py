"""What people did in a sandbox beside its agent, and what a worker put by for the next attempt."""

from typing import ClassVar, Literal

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.quantities import Count, Milliseconds, Whole


class AgentExecStarted(AgentEvent):
    """Somebody runs a command in the sandbox; it is in flight until it ends."""

    type: ClassVar[str] = "agent.exec_started"
    opens: ClassVar[str | None] = "exec_id"
    exec_id: str
    command: list[str]
    cwd: str | None = None


class AgentExecCompleted(AgentEvent):
    """The command has ended."""

    type: ClassVar[str] = "agent.exec_completed"
    closes: ClassVar[str | None] = "exec_id"
    exec_id: str
    state: Literal["exited", "killed", "timed_out", "failed"]
    exit_code: Whole | None = None
    signal: Whole | None = None
    duration_ms: Milliseconds = 0
    output_bytes: Count = 0


class AgentFileUploaded(AgentEvent):
    """A file or folder was put into the work tree from outside."""

    type: ClassVar[str] = "agent.file_uploaded"
    path: str
    size: Count
    sha256: str | None = None
    files: Count = 1


class AgentFileDownloaded(AgentEvent):
    """A file or folder of the work tree was taken out."""

    type: ClassVar[str] = "agent.file_downloaded"
    path: str
    size: Count
    sha256: str | None = None


class AgentWorkSaved(AgentEvent):
    """The work tree of an attempt was put by, as a compressed tar archive, for the next attempt or a later task."""

    type: ClassVar[str] = "agent.work_saved"
    counts_as_work: ClassVar[bool] = False
    artifact: ArtifactRef | None = None
    files: Count = 0
    left_out: str | None = None
    """Why there is no archive, or not of all, as that it would weigh too much."""


class AgentTranscriptSaved(AgentEvent):
    """What the agent and its model said was put by, to be read or resumed."""

    type: ClassVar[str] = "agent.transcript_saved"
    counts_as_work: ClassVar[bool] = False
    session_id: str | None = None
    artifact: ArtifactRef
