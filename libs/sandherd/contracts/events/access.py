"""Events about what users did in a sandbox beside its agent, and what a worker stored for the next attempt."""

import shlex
from typing import Annotated, ClassVar, Literal

from pydantic import StringConstraints

from sandherd.contracts.events.agent import AgentEvent
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.model import Count, Milliseconds, Whole
from sandherd.plurals import pluralize


class AgentExecStarted(AgentEvent):
    """A user's command was started in the sandbox; it is in flight until it ends."""

    type: ClassVar[str] = "agent.exec_started"
    opens: ClassVar[str | None] = "exec_id"
    exec_id: str
    command: list[str]
    cwd: str | None = None

    def summarize(self) -> str:
        return f"$ {shlex.join(self.command)}"


class AgentExecCompleted(AgentEvent):
    """A user's command has ended."""

    type: ClassVar[str] = "agent.exec_completed"
    closes: ClassVar[str | None] = "exec_id"
    exec_id: str
    state: Literal["exited", "killed", "timed_out", "failed"]
    exit_code: Whole | None = None
    signal: Whole | None = None
    duration_ms: Milliseconds = 0
    output_bytes: Count = 0

    def summarize(self) -> str:
        status = "" if self.exit_code is None else f" with status {self.exit_code}"
        return f"{self.state}{status} in {self.duration_ms:.0f} ms"


class AgentFileUploaded(AgentEvent):
    """A file or folder was uploaded to the work tree."""

    type: ClassVar[str] = "agent.file_uploaded"
    path: str
    size: Count
    sha256: str | None = None
    files: Count = 1

    def summarize(self) -> str:
        return f"{self.path}, {self.size} bytes"


class AgentFileDownloaded(AgentEvent):
    """A file or folder of the work tree was downloaded."""

    type: ClassVar[str] = "agent.file_downloaded"
    path: str
    size: Count
    sha256: str | None = None

    def summarize(self) -> str:
        return f"{self.path}, {self.size} bytes"


class AgentWorkSaved(AgentEvent):
    """The work tree of an attempt was stored, as a compressed tar archive, for the next attempt or a later task."""

    type: ClassVar[str] = "agent.work_saved"
    counts_as_work: ClassVar[bool] = False
    artifact: ArtifactRef | None = None
    files: Count = 0
    left_out: str | None = None
    """Why there is no archive, or why it is not complete; for example, because it would be too large."""

    def summarize(self) -> str:
        return f"{pluralize(self.files, 'file')} of the work tree" + (f"; {self.left_out}" if self.left_out else "")


class AgentBranchSaved(AgentEvent):
    """The commits of an attempt were stored as a bundle (git-bundle(1)), to be added to its task's branch."""

    type: ClassVar[str] = "agent.branch_saved"
    counts_as_work: ClassVar[bool] = False
    branch: str
    commit: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{40}|[0-9a-f]{64})$")] | None = None
    """The last commit in the bundle. None: there is no bundle."""
    commits: Count = 0
    """Number of commits in the bundle."""
    committed_rest: bool = False
    """Whether the worker made the last commit, from changes that the agent had not committed."""
    bundle: ArtifactRef | None = None
    """The bundle: the commits that come after the checkout's `base_commit`."""
    left_out: str | None = None
    """Why there is no bundle, or why it is not complete. None, without a bundle: the branch has no new commit."""

    def summarize(self) -> str:
        commits = f"{pluralize(self.commits, 'commit')} of {self.branch}"
        return commits + (f"; {self.left_out}" if self.left_out else "")


class AgentTranscriptSaved(AgentEvent):
    """The transcript of the agent and its model was stored, to be read or resumed."""

    type: ClassVar[str] = "agent.transcript_saved"
    counts_as_work: ClassVar[bool] = False
    session_id: str | None = None
    artifact: ArtifactRef
