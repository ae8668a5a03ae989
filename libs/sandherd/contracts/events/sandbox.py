"""Events of the spawner about sandboxes."""

from typing import ClassVar

from pydantic import Field

from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.constraints import Constraints
from sandherd.contracts.events.base import CommandRefusal, SpawnerEvent, Tone
from sandherd.contracts.events.summaries import local_time
from sandherd.contracts.model import Milliseconds, Moment, Seconds, Whole
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import SandboxState, State, SteeringStep


class SandboxEvent(SpawnerEvent):
    """An event about a sandbox."""

    runtime: str


class SandboxRequested(SandboxEvent):
    """A sandbox was requested. This is recorded before the request to the provider."""

    type: ClassVar[str] = "sandbox.requested"
    sets_state: ClassVar[State | None] = SandboxState.REQUESTED
    linger_seconds: Seconds = 0
    """How long it stays after its agent has ended, to receive messages."""
    expires_at: Moment | None = None
    """When its time to live expires, unless it is extended."""
    profile: SafeName | None = None
    requested_by: str | None = None
    budget: BudgetLimits | None = Field(default=None, exclude_if=lambda budget: budget is None)
    """The budget of its task, from the spec or the profile."""
    constraints: Constraints | None = None
    """What its agent must not do: the constraints of its task, project, profile and herd together. Absent if only the
    default constraints apply."""
    max_intervention: SteeringStep | None = None
    """The strongest step of the monitor's guardian rules, from the task, its profile or its project. None: as for the
    herd."""

    def summarize(self) -> str:
        return self.runtime + (f", until {local_time(self.expires_at)}" if self.expires_at else "")


class SandboxSpawned(SandboxEvent):
    """The provider has created the sandbox."""

    type: ClassVar[str] = "sandbox.spawned"
    sets_state: ClassVar[State | None] = SandboxState.SPAWNING
    milestone: ClassVar[bool] = True
    spawn_ms: Milliseconds = 0
    isolation: str | None = None
    warm: bool = False
    """Whether it was taken from the pool of sandboxes that are started in advance."""

    def summarize(self) -> str:
        source = ", from the pool" if self.warm else ""
        return f"{self.runtime} in {self.spawn_ms:.0f} ms, isolation {self.isolation or 'none'}{source}"


class SandboxRunning(SandboxEvent):
    """The sandbox's worker has published its first event."""

    type: ClassVar[str] = "sandbox.running"
    sets_state: ClassVar[State | None] = SandboxState.RUNNING


class SandboxPaused(SandboxEvent):
    """The sandbox is paused: its processes are frozen."""

    type: ClassVar[str] = "sandbox.paused"
    sets_state: ClassVar[State | None] = SandboxState.PAUSED
    tone: ClassVar[Tone | None] = "attention"
    reason: str = ""

    def summarize(self) -> str:
        return self.reason or "frozen"


class SandboxResumed(SandboxEvent):
    """The sandbox is resumed."""

    type: ClassVar[str] = "sandbox.resumed"
    sets_state: ClassVar[State | None] = SandboxState.RUNNING

    def summarize(self) -> str:
        return "running again"


class SandboxExtended(SandboxEvent):
    """The sandbox's time to live was extended."""

    type: ClassVar[str] = "sandbox.extended"
    expires_at: Moment

    def summarize(self) -> str:
        return f"until {local_time(self.expires_at)}"


class SandboxRefused(CommandRefusal, SpawnerEvent):
    """A command about a sandbox was rejected, and will never be carried out.

    The event has its own source. But if a pause was accepted and the runtime refuses it later, the source is the
    sandbox's.
    """

    type: ClassVar[str] = "sandbox.refused"
    closes_source_alone: ClassVar[bool] = True


class SandboxStopping(SandboxEvent):
    """The sandbox is being ended."""

    type: ClassVar[str] = "sandbox.stopping"
    sets_state: ClassVar[State | None] = SandboxState.STOPPING
    reason: str

    def summarize(self) -> str:
        return self.reason


class SandboxTerminated(SandboxEvent):
    """The sandbox has ended, and with it all its processes."""

    type: ClassVar[str] = "sandbox.terminated"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = SandboxState.TERMINATED
    milestone: ClassVar[bool] = True
    reason: str
    lived_seconds: Seconds = 0
    exit_code: Whole | None = None
    unsaid: bool = False
    """Whether it ended with unpublished events: something that its agent emitted could not be published in time."""

    def summarize(self) -> str:
        return f"{self.reason}, after {self.lived_seconds:.1f} s"


class SandboxFailed(SandboxEvent):
    """The sandbox could not be created, or was lost."""

    type: ClassVar[str] = "sandbox.failed"
    closes_source: ClassVar[bool] = True
    sets_state: ClassVar[State | None] = SandboxState.FAILED
    milestone: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    error: str
    error_type: str

    def summarize(self) -> str:
        return f"{self.error} ({self.error_type})"


class SandboxOrphanFound(SandboxEvent):
    """A provider has a sandbox that no record refers to."""

    type: ClassVar[str] = "sandbox.orphan_found"


class SandboxOrphanRemoved(SandboxEvent):
    """An orphan was removed."""

    type: ClassVar[str] = "sandbox.orphan_removed"
