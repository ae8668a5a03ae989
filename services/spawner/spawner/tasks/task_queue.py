"""The queue: all pending tasks, what each waits for, and which one begins next. It does no I/O.

Its caller passes the current state of every task and sandbox, in any order and possibly repeated. The cost of a
decision does not grow with the number of pending tasks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sandherd.contracts.records import BudgetBlocks
from sandherd.contracts.requests import ProjectLimits, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, TaskState
from spawner.tasks.alarms import Alarms
from spawner.tasks.capacity import Capacity, SandboxLimits
from spawner.tasks.dependency_graph import DependencyGraph
from spawner.tasks.ready_tasks import ReadyTasks
from spawner.tasks.scheduling_order import QueuePosition, position_of, score_of
from spawner.tasks.task_record import TaskFacts


@dataclass(slots=True)
class QueuedTask:
    """A pending task. It may not begin before `deferred_until`, which is None once that time has passed."""

    task: TaskFacts
    position: QueuePosition
    deferred_until: datetime | None


class TaskQueue:
    """The pending tasks, and the capacity for them. Tasks and sandboxes are named by their keys, `<project>.<name>`.

    `age` is the time of waiting that is worth one step of priority, in seconds (see `scheduling_order`).
    """

    def __init__(self, allowed: SandboxLimits, age: float) -> None:
        self.capacity = Capacity(allowed)
        self._age = age
        self._pending: dict[str, QueuedTask] = {}
        self._ready = ReadyTasks(self.capacity)
        self._requested: dict[str, None] = {}
        """Tasks for which a scheduler requested a sandbox before it crashed: `capacity` counts this sandbox already."""
        self._unstartable: dict[str, None] = {}
        self._dependencies = DependencyGraph()
        self._sandboxes: dict[str, dict[str, int]] = {}
        """For each task, its live sandboxes, each with the number of its attempt."""
        self._deferred = Alarms()
        self._time_limits = Alarms()

    # --- changes -------------------------------------------------------------------------------------------------

    def change_task(self, key: str, task: TaskFacts) -> None:
        """Update a task to its current state."""
        self._time_limits.set(key, task.limit_at)
        if task.state is TaskState.PENDING:
            self._add(key, task)
        else:
            self._remove(key)
        self._classify(self._dependencies.change(key, task.state))

    def remove_task(self, key: str) -> None:
        """Remove a task that no longer exists."""
        self._time_limits.set(key, None)
        self._remove(key)
        self._classify(self._dependencies.change(key, None))

    def change_sandbox(self, key: str, sandbox: SandboxView) -> None:
        """Update a sandbox to its current state."""
        if sandbox.state in SANDBOX_ENDED:
            self.remove_sandbox(key)
            return
        self.capacity.change(key, sandbox)
        if sandbox.task is not None:
            task = f"{sandbox.project}.{sandbox.task}"
            self._sandboxes.setdefault(task, {})[key] = sandbox.attempt
            self._classify([task])

    def remove_sandbox(self, key: str) -> None:
        """Remove a sandbox that has ended."""
        sandbox = self.capacity.remove(key)
        if sandbox is None:
            return
        self._ready.capacity_freed(sandbox.project)
        task = f"{sandbox.project}.{sandbox.task}"
        live = self._sandboxes.get(task, {})
        live.pop(key, None)
        if not live:
            self._sandboxes.pop(task, None)
        self._classify([task])

    def change_project(self, project: str, limits: ProjectLimits | None) -> None:
        """Update the limits of a project. `limits` is None if the project has no limits of its own."""
        self.capacity.set_limits(project, limits)
        self._ready.capacity_freed(project)

    def change_blocks(self, blocks: BudgetBlocks) -> None:
        """Update the projects that may begin no task because a budget is exceeded."""
        self.capacity.set_blocks(blocks)
        for project in {queued.task.project for queued in self._pending.values()}:
            self._ready.capacity_freed(project)

    def defer(self, key: str, until: datetime) -> None:
        """Prevent a task from beginning before `until`, for a reason that is not in its record."""
        queued = self._pending.get(key)
        if queued is not None:
            queued.deferred_until = until
            self._classify([key])

    # --- queries -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._pending)

    def next(self, now: datetime) -> TaskFacts | None:
        """The task to begin now, if there is capacity. It stays in the queue until it is no longer pending."""
        self._wake(now)
        key = next(iter(self._requested), None) or self._ready.first()
        return self._pending[key].task if key else None

    def unstartable(self) -> list[str]:
        """Tasks that can never begin, because a dependency has failed, was cancelled or does not exist."""
        return list(self._unstartable)

    def overdue(self, now: datetime) -> list[str]:
        """Tasks with an expired time limit, pending or not."""
        return self._time_limits.due(now)

    def wakes_at(self) -> datetime | None:
        """The next time at which a task is no longer deferred or a time limit expires; None if there is none."""
        return min(filter(None, (self._deferred.first(), self._time_limits.first())), default=None)

    def oldest(self) -> float | None:
        """When the oldest ready task was submitted, in seconds since 1970."""
        return self._ready.oldest()

    def score(self, key: str, now: datetime) -> float | None:
        """A pending task's scheduling score. A task with a higher score begins earlier."""
        queued = self._pending.get(key)
        return None if queued is None else round(score_of(queued.position[0], now.timestamp(), self._age), 3)

    def waits_for(self, key: str, now: datetime) -> str | None:
        """What a pending task waits for, as text."""
        self._wake(now)
        queued = self._pending.get(key)
        if queued is None:
            return None
        unmet = self._dependencies.unmet(queued.task)
        if unmet:
            more = f", and {len(unmet) - 1} more of its dependencies" if unmet[1:] else ""
            return f"{unmet[0][0]} has to be completed ({unmet[0][1] or 'does not exist'}){more}"
        ending = [attempt for attempt in self._sandboxes.get(key, {}).values() if attempt != queued.task.attempt]
        if ending:
            return f"the sandbox of attempt {ending[0]} is still ending"
        if queued.task.checkout_delay or (queued.task.needs_checkout and queued.task.not_before is None):
            return queued.task.checkout_delay or "its branch is being prepared"
        if queued.deferred_until is not None:
            return f"retry at {queued.deferred_until:%Y-%m-%d %H:%M:%S} UTC"
        return self._position_text(queued)

    # --- internals -----------------------------------------------------------------------------------------------

    def _position_text(self, queued: QueuedTask) -> str:
        if paused := self.capacity.pause(queued.task.project):
            return paused  # its position does not matter
        exhausted = self.capacity.exhausted_limit(queued.task.project, queued.task.runtime)
        before = self._ready.before(queued.position)
        place = f"{before} {'task is' if before == 1 else 'tasks are'} before it" if before else "it is next"
        return f"{exhausted}; {place}" if exhausted else place

    def _add(self, key: str, task: TaskFacts) -> None:
        known = self._pending.get(key)
        if known is not None and known.task.depends_on != task.depends_on:
            self._remove(key)
        self._pending[key] = QueuedTask(task, self._position(key, task), task.not_before)
        self._update_positions(self._dependencies.add(key, task))
        self._classify([key])

    def _remove(self, key: str) -> None:
        queued = self._pending.pop(key, None)
        if queued is not None:
            self._update_positions(self._dependencies.remove(key, queued.task))
            self._classify([key])

    def _position(self, key: str, task: TaskFacts) -> QueuePosition:
        return position_of(task, self._dependencies.dependants(key), self._age)

    def _update_positions(self, keys: Iterable[str]) -> None:
        """Recompute the positions of tasks whose number of dependants has changed."""
        for key in keys:
            queued = self._pending.get(key)
            if queued is not None:
                queued.position = self._position(key, queued.task)
                self._classify([key])

    def _classify(self, keys: Iterable[str]) -> None:
        """Classify each task: requested, unstartable, waiting or ready."""
        for key in keys:
            self._requested.pop(key, None)
            self._unstartable.pop(key, None)
            queued = self._pending.get(key)
            self._deferred.set(key, queued.deferred_until if queued else None)
            if queued is not None and self._is_ready(key, queued):
                self._ready.put(key, queued.task.runtime, queued.position)
            else:
                self._ready.discard(key)

    def _is_ready(self, key: str, queued: QueuedTask) -> bool:
        attempts = self._sandboxes.get(key, {}).values()
        if queued.deferred_until is not None:
            return False
        if queued.task.attempt in attempts:
            self._requested[key] = None
            return False
        if self._dependencies.is_unstartable(queued.task):
            self._unstartable[key] = None
            return False
        return not attempts and not self._dependencies.unmet(queued.task)

    def _wake(self, now: datetime) -> None:
        for key in self._deferred.due(now):
            self._pending[key].deferred_until = None
            self._classify([key])
