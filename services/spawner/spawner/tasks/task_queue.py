"""The queue: all pending tasks, what each waits for, and which is next. It is updated by changes and does no I/O.

It receives the current state of every task and sandbox, in any order and possibly repeated. The cost of a decision
does not grow with the number of pending tasks.
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
    """A pending task. `until` is the earliest time at which it may begin; None once that has passed."""

    task: TaskFacts
    position: QueuePosition
    until: datetime | None


class TaskQueue:
    """Tasks and sandboxes are identified by their keys, `<project>.<name>`. `age` is in seconds; see `turn_order`."""

    def __init__(self, allowed: SandboxLimits, age: float) -> None:
        self.capacity = Capacity(allowed)
        self._age = age
        self._waiters: dict[str, QueuedTask] = {}
        self._ready = ReadyTasks(self.capacity)
        self._requested: dict[str, None] = {}
        """Tasks whose sandbox was requested by a scheduler that then crashed: its capacity is already counted."""
        self._unstartable: dict[str, None] = {}
        self._dependencies = DependencyGraph()
        self._sandboxes: dict[str, dict[str, int]] = {}
        """By task: its live sandboxes, and the attempt of each."""
        self._later = Alarms()
        self._limits = Alarms()

    # --- changes -------------------------------------------------------------------------------------------------

    def change_task(self, key: str, task: TaskFacts) -> None:
        """Update a task to its current state."""
        self._limits.set(key, task.limit_at)
        if task.state is TaskState.PENDING:
            self._add(key, task)
        else:
            self._remove(key)
        self._classify(self._dependencies.change(key, task.state))

    def remove_task(self, key: str) -> None:
        """Remove a task that no longer exists."""
        self._limits.set(key, None)
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
        """Remove a sandbox that is no longer live."""
        sandbox = self.capacity.remove(key)
        if sandbox is None:
            return
        self._ready.capacity_freed(sandbox.project)
        task = f"{sandbox.project}.{sandbox.task}"
        living = self._sandboxes.get(task, {})
        living.pop(key, None)
        if not living:
            self._sandboxes.pop(task, None)
        self._classify([task])

    def change_project(self, project: str, limits: ProjectLimits | None) -> None:
        """Update the limits of a project; None if it has none of its own."""
        self.capacity.set_limits(project, limits)
        self._ready.capacity_freed(project)

    def change_blocks(self, blocks: BudgetBlocks) -> None:
        """Update which projects are over budget."""
        self.capacity.set_blocks(blocks)
        for project in {waiter.task.project for waiter in self._waiters.values()}:
            self._ready.capacity_freed(project)

    def defer(self, key: str, until: datetime) -> None:
        """Defer a task until then, for a reason that is not in its record."""
        waiter = self._waiters.get(key)
        if waiter is not None:
            waiter.until = until
            self._classify([key])

    # --- queries -------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiters)

    def next(self, now: datetime) -> TaskFacts | None:
        """The task to begin now, if there is capacity. It stays in the queue until it is not pending."""
        self._wake(now)
        key = next(iter(self._requested), None) or self._ready.first()
        return self._waiters[key].task if key else None

    def unstartable(self) -> list[str]:
        """Tasks that can never begin: a dependency failed, was cancelled or does not exist."""
        return list(self._unstartable)

    def overdue(self, now: datetime) -> list[str]:
        """Tasks with an expired time limit, pending or not."""
        return self._limits.due(now)

    def wakes_at(self) -> datetime | None:
        """The next time at which something is due without a change, as far as known."""
        return min(filter(None, (self._later.first(), self._limits.first())), default=None)

    def oldest(self) -> float | None:
        """When the oldest ready task was submitted, in seconds since 1970."""
        return self._ready.oldest()

    def score(self, key: str, now: datetime) -> float | None:
        """A pending task's scheduling score: the higher, the earlier."""
        waiter = self._waiters.get(key)
        return None if waiter is None else round(score_of(waiter.position[0], now.timestamp(), self._age), 3)

    def waits_for(self, key: str, now: datetime) -> str | None:
        """What a pending task waits for, as text."""
        self._wake(now)
        waiter = self._waiters.get(key)
        if waiter is None:
            return None
        unmet = self._dependencies.unmet(waiter.task)
        if unmet:
            more = f", and {len(unmet) - 1} more" if unmet[1:] else ""
            return f"{unmet[0][0]} has to be completed ({unmet[0][1] or 'does not exist'}){more}"
        ending = [attempt for attempt in self._sandboxes.get(key, {}).values() if attempt != waiter.task.attempt]
        if ending:
            return f"the sandbox of attempt {ending[0]} is still ending"
        if waiter.task.prepares_because or (waiter.task.prepares and waiter.task.not_before is None):
            return waiter.task.prepares_because or "its branch is being prepared"
        if waiter.until is not None:
            return f"retry at {waiter.until:%Y-%m-%d %H:%M:%S} UTC"
        return self._position_text(waiter)

    # --- internals -----------------------------------------------------------------------------------------------

    def _position_text(self, waiter: QueuedTask) -> str:
        if paused := self.capacity.pause(waiter.task.project):
            return paused  # its position does not matter
        exhausted = self.capacity.exhausted_limit(waiter.task.project, waiter.task.runtime)
        before = self._ready.before(waiter.position)
        turn = f"{before} {'task is' if before == 1 else 'tasks are'} before it" if before else "it is next"
        return f"{exhausted}; {turn}" if exhausted else turn

    def _add(self, key: str, task: TaskFacts) -> None:
        known = self._waiters.get(key)
        if known is not None and known.task.depends_on != task.depends_on:
            self._remove(key)
        self._waiters[key] = QueuedTask(task, self._position(key, task), task.not_before)
        self._update_positions(self._dependencies.add(key, task))
        self._classify([key])

    def _remove(self, key: str) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            self._update_positions(self._dependencies.remove(key, waiter.task))
            self._classify([key])

    def _position(self, key: str, task: TaskFacts) -> QueuePosition:
        return position_of(task, self._dependencies.dependants(key), self._age)

    def _update_positions(self, keys: Iterable[str]) -> None:
        """Recompute the positions of tasks whose number of dependants changed."""
        for key in keys:
            waiter = self._waiters.get(key)
            if waiter is not None:
                waiter.position = self._position(key, waiter.task)
                self._classify([key])

    def _classify(self, keys: Iterable[str]) -> None:
        """Classify each task: requested, unstartable, waiting or ready."""
        for key in keys:
            self._requested.pop(key, None)
            self._unstartable.pop(key, None)
            waiter = self._waiters.get(key)
            self._later.set(key, waiter.until if waiter else None)
            if waiter is not None and self._is_ready(key, waiter):
                self._ready.put(key, waiter.task.runtime, waiter.position)
            else:
                self._ready.discard(key)

    def _is_ready(self, key: str, waiter: QueuedTask) -> bool:
        attempts = self._sandboxes.get(key, {}).values()
        if waiter.until is not None:
            return False
        if waiter.task.attempt in attempts:
            self._requested[key] = None
            return False
        if self._dependencies.is_unstartable(waiter.task):
            self._unstartable[key] = None
            return False
        return not attempts and not self._dependencies.unmet(waiter.task)

    def _wake(self, now: datetime) -> None:
        for key in self._later.due(now):
            self._waiters[key].until = None
            self._classify([key])
