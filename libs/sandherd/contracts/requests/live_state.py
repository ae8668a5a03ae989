"""Requests to the spawner for current tasks and sandboxes, and the request of a worker for its credential."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.labels import Selector
from sandherd.contracts.model import Attempt, Count, Model, Moment, Number
from sandherd.contracts.names import EnvName, SafeName
from sandherd.contracts.patterns import NO_NUL
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.states import SandboxState, TaskState


class TaskView(Model):
    """The current state of a task."""

    project: SafeName
    task: SafeName
    state: TaskState
    attempt: Attempt = 1
    text: str = ""
    harness: str = ""
    runtime: str = ""
    sandbox: SafeName | None = None
    submitted_at: Moment
    started_at: Moment | None = None
    ended_at: Moment | None = None
    error: str | None = None
    error_type: str | None = None
    result: dict[str, Any] = Field(default_factory=dict)
    priority: str = "normal"
    deadline: Moment | None = None
    depends_on: list[SafeName] = Field(default_factory=list)
    max_attempts: Attempt = 1
    not_before: Moment | None = None
    """For a task that waits for a retry: the earliest time of the retry."""
    repository: str | None = None
    """The repository that it works on: its URL, or the label of a local one."""
    branch: str | None = None
    """The branch that it works on, once the branch is created."""
    pull_request: PullRequestView | None = Field(default=None, exclude_if=lambda value: value is None)
    """The pull request of its branch, in a view of one task."""
    waits_for: str | None = None
    """For a task that waits: what it waits for, as text."""
    score: float | None = None
    """For a task that waits: its score, see docs/scheduling.md. A task with a higher score is scheduled earlier."""
    profile: SafeName | None = None
    secrets_until: Moment | None = Field(default=None, exclude_if=lambda until: until is None)
    """For a task that failed or was cancelled: the time until which its secrets are stored, so that it can be retried.
    """
    secret_env: list[EnvName] = Field(default_factory=list, exclude_if=lambda names: not names)
    """Names of the task's variables with secret values that were submitted with it. After `secrets_until`, a retry
    needs new values for all of them."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)


class SandboxView(Model):
    """The current state of a sandbox."""

    project: SafeName
    sandbox: SafeName
    state: SandboxState
    task: SafeName | None = None
    attempt: Attempt = 1
    runtime: str
    isolation: str | None = None
    requested_at: Moment
    running_at: Moment | None = None
    ended_at: Moment | None = None
    reason: str | None = None
    error: str | None = None
    events: Count = 0
    last_event_at: Moment | None = None
    last_heartbeat_at: Moment | None = None
    expires_at: Moment | None = None
    profile: SafeName | None = None
    warm: bool = False
    """Whether it was taken from the pool."""


class TaskList(Model):
    """Tasks, newest first."""

    tasks: list[TaskView]
    next_cursor: str | None = None


class SandboxList(Model):
    """Sandboxes, newest first."""

    sandboxes: list[SandboxView]
    next_cursor: str | None = None


SortOrder = Literal["newest", "oldest", "name", "state"]
"""The order of a list: by the time of submission or request, by name, or by state and then by name."""


class TaskFilter(Page):
    """Which tasks to list, and in which order. A task is listed if it meets all conditions."""

    task: SafeName | None = None
    state: TaskState | None = None
    states: list[TaskState] = Field(default_factory=list, max_length=8, exclude_if=lambda states: not states)
    """Only tasks in one of these states, or in `state`. If neither is set: tasks in any state."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Only tasks that have all of these labels."""
    since: Moment | None = Field(default=None, exclude_if=lambda since: since is None)
    """Only tasks that were submitted at this time or later."""
    contains: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] = Field(
        default="", exclude_if=lambda text: not text
    )
    """Only tasks whose name or text contains this text; case is ignored. Empty: all tasks."""
    sort: SortOrder = Field(default="newest", exclude_if=lambda sort: sort == "newest")

    @property
    def wanted_states(self) -> frozenset[TaskState]:
        """The states in `state` and `states`; empty: any state."""
        return frozenset(self.states if self.state is None else [*self.states, self.state])


class SandboxFilter(Page):
    """Which sandboxes to list, and in which order. A sandbox is listed if it meets all conditions."""

    sandbox: SafeName | None = None
    state: SandboxState | None = None
    states: list[SandboxState] = Field(default_factory=list, max_length=8, exclude_if=lambda states: not states)
    """Only sandboxes in one of these states, or in `state`. If neither is set: sandboxes in any state."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Only sandboxes of tasks that have all of these labels."""
    since: Moment | None = Field(default=None, exclude_if=lambda since: since is None)
    """Only sandboxes that were requested at this time or later."""
    sort: SortOrder = Field(default="newest", exclude_if=lambda sort: sort == "newest")

    @property
    def wanted_states(self) -> frozenset[SandboxState]:
        """The states in `state` and `states`; empty: any state."""
        return frozenset(self.states if self.state is None else [*self.states, self.state])


class ListLiveTasks(Request[TaskList], TaskFilter):
    """List the tasks in the spawner's bucket: all live ones, and recently ended ones."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "spawner.tasks"


class ListLiveSandboxes(Request[SandboxList], SandboxFilter):
    """List the sandboxes in the spawner's bucket: all live ones, and recently ended ones."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "spawner.sandboxes"


class CredentialGrant(Model):
    """A worker's credential: a NATS user JWT for the key that the sandbox holds."""

    jwt: str
    expires_at: Moment
    may_start: bool = True
    """Whether its agent may be started now. It is false for an attempt that has ended, so that it is not started again.
    """
    joiner: str | None = None
    """A new credentials file for the joiner, if the sandbox may live longer than the old file is valid."""


class GetCredential(Request[CredentialGrant]):
    """Return a new credential for a worker, for a key that only the worker holds. The subject identifies the worker."""

    Answer: ClassVar[type[BaseModel]] = CredentialGrant
    type: ClassVar[str] = "spawner.credential"
    public_key: Annotated[str, StringConstraints(pattern="^U[A-Z2-7]{55}$")]
    fence: Number
    """The fencing token of the attempt; a lower one is refused."""
