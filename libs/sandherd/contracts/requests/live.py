"""Questions to the spawner: what is so now, and a worker's for its credential."""

from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, StringConstraints

from sandherd.contracts.harnesses import EnvName
from sandherd.contracts.model import Model
from sandherd.contracts.names import SafeName
from sandherd.contracts.quantities import Attempt, Count, Moment, Number
from sandherd.contracts.requests.base import Page, Request
from sandherd.contracts.states import SandboxState, TaskState


class TaskView(Model):
    """A task as it stands."""

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
    """Of a task that waits to be tried again: when it may be."""
    waits_for: str | None = None
    """Of a task that waits: for what, in words."""
    score: float | None = None
    """Of a task that waits: the higher, the earlier its turn; see docs/scheduling.md."""
    profile: SafeName | None = None
    secrets_until: Moment | None = Field(default=None, exclude_if=lambda until: until is None)
    """Of a task that failed or was cancelled: until when its secrets are stored, so that it can be retried."""
    secret_env: list[EnvName] = Field(default_factory=list, exclude_if=lambda names: not names)
    """Names of its variables whose values are secret and were given with it; after `secrets_until` a retry needs new
    values of all of them."""


class SandboxView(Model):
    """A sandbox as it stands."""

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
    """Whether it came from the pool."""


class TaskList(Model):
    """Tasks, newest first."""

    tasks: list[TaskView]
    next_cursor: str | None = None


class SandboxList(Model):
    """Sandboxes, newest first."""

    sandboxes: list[SandboxView]
    next_cursor: str | None = None


class LiveTasks(Request[TaskList], Page):
    """The tasks in the spawner's bucket: all that live, and those that ended lately."""

    Answer: ClassVar[type[BaseModel]] = TaskList
    type: ClassVar[str] = "spawner.tasks"
    task: SafeName | None = None
    state: TaskState | None = None


class LiveSandboxes(Request[SandboxList], Page):
    """The sandboxes in the spawner's bucket: all that live, and those that ended lately."""

    Answer: ClassVar[type[BaseModel]] = SandboxList
    type: ClassVar[str] = "spawner.sandboxes"
    sandbox: SafeName | None = None
    state: SandboxState | None = None


class CredentialGrant(Model):
    """A worker's credential: a NATS user JWT for the key that the sandbox holds."""

    jwt: str
    expires_at: Moment
    may_start: bool = True
    """Whether its agent may be started now: it is what keeps an attempt that is over from beginning once more."""
    joiner: str | None = None
    """A new joiner's credentials file, where the sandbox may live longer than the old one is good for."""


class AskCredential(Request[CredentialGrant]):
    """A worker's question for a new credential, for a key only it holds. The subject says who asks."""

    Answer: ClassVar[type[BaseModel]] = CredentialGrant
    type: ClassVar[str] = "spawner.credential"
    public_key: Annotated[str, StringConstraints(pattern="^U[A-Z2-7]{55}$")]
    fence: Number
    """The fencing token of the attempt; an older one is refused."""
