"""Requests to the spawner: for current tasks and sandboxes, and a worker's for its credential."""

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
    """The branch that it works on, once that is created."""
    pull_request: PullRequestView | None = Field(default=None, exclude_if=lambda value: value is None)
    """The pull request of its branch, in a view of one task."""
    waits_for: str | None = None
    """For a task that waits: what it waits for, as text."""
    score: float | None = None
    """For a task that waits: the higher, the earlier it is scheduled; see docs/scheduling.md."""
    profile: SafeName | None = None
    secrets_until: Moment | None = Field(default=None, exclude_if=lambda until: until is None)
    """For a task that failed or was cancelled: until when its secrets are stored, so that it can be retried."""
    secret_env: list[EnvName] = Field(default_factory=list, exclude_if=lambda names: not names)
    """Names of its variables with secret values that were submitted with it; after `secrets_until` a retry needs new
    values for all of them."""
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
"""The order of a list: by the time of its request, by name, or by state and then by name."""


class TaskFilter(Page):
    """Which tasks to list, and in which order. A task is listed if it meets all conditions."""

    task: SafeName | None = None
    state: TaskState | None = None
    states: list[TaskState] = Field(default_factory=list, max_length=8, exclude_if=lambda states: not states)
    """Tasks in one of these states; in addition to `state`. Empty: in any."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Tasks that have all of these labels."""
    since: Moment | None = Field(default=None, exclude_if=lambda since: since is None)
    """Tasks that were submitted then or later."""
    contains: Annotated[str, StringConstraints(max_length=200, pattern=NO_NUL)] = Field(
        default="", exclude_if=lambda text: not text
    )
    """Tasks whose name or text contains this, whatever the case of its letters. Empty: any."""
    sort: SortOrder = Field(default="newest", exclude_if=lambda sort: sort == "newest")

    @property
    def wanted_states(self) -> frozenset[TaskState]:
        """The requested states; empty: any."""
        return frozenset(self.states if self.state is None else [*self.states, self.state])


class SandboxFilter(Page):
    """Which sandboxes to list, and in which order. A sandbox is listed if it meets all conditions."""

    sandbox: SafeName | None = None
    state: SandboxState | None = None
    states: list[SandboxState] = Field(default_factory=list, max_length=8, exclude_if=lambda states: not states)
    """Sandboxes in one of these states; in addition to `state`. Empty: in any."""
    labels: Selector = Field(default_factory=dict, exclude_if=lambda labels: not labels)
    """Sandboxes of tasks that have all of these labels."""
    since: Moment | None = Field(default=None, exclude_if=lambda since: since is None)
    """Sandboxes that were requested then or later."""
    sort: SortOrder = Field(default="newest", exclude_if=lambda sort: sort == "newest")

    @property
    def wanted_states(self) -> frozenset[SandboxState]:
        """The requested states; empty: any."""
        return frozenset(self.states if self.state is None else [*self.states, self.state])


class ListLiveTasks(Request[TaskList], TaskFilter):
    """List the tasks in the spawner's bucket: all live ones, and those that ended recently."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "spawner.tasks"


class ListLiveSandboxes(Request[SandboxList], SandboxFilter):
    """List the sandboxes in the spawner's bucket: all live ones, and those that ended recently."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "spawner.sandboxes"


class CredentialGrant(Model):
    """A worker's credential: a NATS user JWT for the key that the sandbox holds."""

    jwt: str
    expires_at: Moment
    may_start: bool = True
    """Whether its agent may be started now; this prevents an attempt that has ended from being started again."""
    joiner: str | None = None
    """A new credentials file for the joiner, where the sandbox may live longer than the old one is valid."""


class GetCredential(Request[CredentialGrant]):
    """A worker's request for a new credential, for a key that only it holds. The subject identifies the requester."""

    Answer: ClassVar[type[BaseModel]] = CredentialGrant
    type: ClassVar[str] = "spawner.credential"
    public_key: Annotated[str, StringConstraints(pattern="^U[A-Z2-7]{55}$")]
    fence: Number
    """The fencing token of the attempt; an older one is refused."""
