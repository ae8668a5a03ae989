"""Tasks and sandboxes for a queue, and a simple queue that computes every decision from all of them."""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, SandboxState, TaskState
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.scheduling_order import QueuePosition, position_of
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskFacts

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
AGE = 3600.0
PENDING = TaskState.PENDING
PRIORITIES = ("critical", "high", "normal", "low")


def task(name: str, ago: float = 0, **changes: object) -> TaskFacts:
    """A task of project p1 that was submitted this number of seconds ago."""
    view = TaskFacts(
        project="p1", task=name, state=PENDING, runtime="process", submitted_at=BEGIN - timedelta(seconds=ago)
    )
    return view.model_copy(update=changes)


def sandbox(of: TaskFacts, state: SandboxState = SandboxState.RUNNING, **changes: object) -> SandboxView:
    """The sandbox of the task's current attempt."""
    view = SandboxView(
        project=of.project, sandbox=f"sbx-{of.task}-{of.attempt}", state=state, task=of.task, attempt=of.attempt,
        runtime=of.runtime, requested_at=BEGIN,
    )  # fmt: skip
    return view.model_copy(update=changes)


def key_of(view: TaskFacts | SandboxView) -> str:
    """The key of a task or sandbox in its bucket."""
    return f"{view.project}.{view.task if isinstance(view, TaskFacts) else view.sandbox}"


def queue_of(tasks: list[TaskFacts], allowed: SandboxLimits | None = None) -> TaskQueue:
    """A queue that has received these tasks."""
    queue = TaskQueue(allowed or SandboxLimits(total=8), AGE)
    for view in tasks:
        queue.change_task(key_of(view), view)
    return queue


def notify(queue: TaskQueue, *views: TaskFacts | SandboxView) -> None:
    """Update the queue to the current states of these tasks and sandboxes."""
    for view in views:
        if isinstance(view, TaskFacts):
            queue.change_task(key_of(view), view)
        else:
            queue.change_sandbox(key_of(view), view)


def begin(queue: TaskQueue, view: TaskFacts) -> TaskFacts:
    """Begin a task as the scheduler does: first the sandbox's record, then the task that names the sandbox."""
    box = sandbox(view, SandboxState.REQUESTED)
    assigned = view.model_copy(update={"state": TaskState.ASSIGNED, "sandbox": box.sandbox})
    notify(queue, box, assigned)
    return assigned


def after(seconds: float) -> datetime:
    """The time this number of seconds after `BEGIN`."""
    return BEGIN + timedelta(seconds=seconds)


def names_in_order(queue: TaskQueue, now: datetime = BEGIN) -> list[str]:
    """Begin tasks one after the other, until there is no capacity or no task that may begin. Returns their names."""
    found = []
    while (view := queue.next(now)) is not None:
        begin(queue, view)
        found.append(view.task)
    return found


class Plain:
    """The states of all tasks and sandboxes. Every decision is computed from all of them."""

    def __init__(self, allowed: SandboxLimits) -> None:
        self.allowed = allowed
        self.tasks: dict[str, TaskFacts] = {}
        self.sandboxes: dict[str, SandboxView] = {}

    def pending(self) -> list[TaskFacts]:
        return [view for view in self.tasks.values() if view.state is PENDING]

    def live(self) -> list[SandboxView]:
        return [view for view in self.sandboxes.values() if view.state not in SANDBOX_ENDED]

    def place(self, view: TaskFacts) -> QueuePosition:
        dependants = [
            other for other in self.pending() if other.project == view.project and view.task in other.depends_on
        ]
        return position_of(view, len(dependants), AGE)

    def states(self, view: TaskFacts) -> list[TaskState | None]:
        found: Mapping[str, TaskFacts] = self.tasks
        keys = [f"{view.project}.{name}" for name in view.depends_on]
        return [found[key].state if key in found else None for key in keys]

    def unstartable(self, view: TaskFacts) -> bool:
        return bool({TaskState.FAILED, TaskState.CANCELLED, None} & set(self.states(view)))

    def attempts(self, view: TaskFacts) -> list[int]:
        return [box.attempt for box in self.live() if (box.project, box.task) == (view.project, view.task)]

    def begun(self, now: datetime) -> list[TaskFacts]:
        return [view for view in self.awake(now) if view.attempt in self.attempts(view)]

    def awake(self, now: datetime) -> Iterator[TaskFacts]:
        return (view for view in self.pending() if view.not_before is None or view.not_before <= now)

    def ready(self, now: datetime) -> list[TaskFacts]:
        found = [
            view
            for view in self.awake(now)
            if not self.attempts(view) and all(state is TaskState.COMPLETED for state in self.states(view))
        ]
        return sorted(found, key=self.place)

    def has_capacity(self, view: TaskFacts) -> bool:
        live = self.live()
        return (
            len(live) < self.allowed.total
            and sum(box.project == view.project for box in live) < self.allowed.in_project(view.project)
            and sum(box.runtime == view.runtime for box in live) < self.allowed.in_runtime(view.runtime)
        )

    def next(self, now: datetime) -> TaskFacts | None:
        return next((view for view in self.ready(now) if self.has_capacity(view)), None)
