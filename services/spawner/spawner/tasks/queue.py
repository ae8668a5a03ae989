"""The queue: every task that waits, for what, and which is next. Kept up to date change by change; it asks nobody.

It is told of every task and sandbox as it stands now, in any order and as often as one likes. What a decision costs
does not grow with how many wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED, TaskState
from spawner.tasks.alarms import Alarms
from spawner.tasks.ready import Ready
from spawner.tasks.record import TaskFacts
from spawner.tasks.room import Allowed, Room
from spawner.tasks.scheduling import Place, place_of, score_of
from spawner.tasks.ties import Ties


@dataclass(slots=True)
class Waiter:
    """A pending task. `until` is when it may begin; None once that is over."""

    task: TaskFacts
    place: Place
    until: datetime | None


class Queue:
    """Tasks and sandboxes are named by their keys: `<project>.<name>`. `age` is in seconds; see `scheduling`."""

    def __init__(self, allowed: Allowed, age: float) -> None:
        self.room = Room(allowed)
        self._age = age
        self._waiters: dict[str, Waiter] = {}
        self._ready = Ready(self.room)
        self._begun: dict[str, None] = {}
        """Those whose sandbox was requested before somebody died: it has its room already."""
        self._doomed: dict[str, None] = {}
        self._ties = Ties()
        self._sandboxes: dict[str, dict[str, int]] = {}
        """By task: the sandboxes of it that live, and of which attempt each is."""
        self._later = Alarms()
        self._limits = Alarms()

    # --- what is told to it --------------------------------------------------------------------------------------

    def change_task(self, key: str, task: TaskFacts) -> None:
        """A task as it stands."""
        self._limits.set(key, task.limit_at)
        if task.state is TaskState.PENDING:
            self._enter(key, task)
        else:
            self._leave(key)
        self._settle(self._ties.change(key, task.state))

    def remove_task(self, key: str) -> None:
        """There is no such task any more."""
        self._limits.set(key, None)
        self._leave(key)
        self._settle(self._ties.change(key, None))

    def change_sandbox(self, key: str, sandbox: SandboxView) -> None:
        """A sandbox as it stands."""
        if sandbox.state in SANDBOX_ENDED:
            self.remove_sandbox(key)
            return
        self.room.change(key, sandbox)
        if sandbox.task is not None:
            task = f"{sandbox.project}.{sandbox.task}"
            self._sandboxes.setdefault(task, {})[key] = sandbox.attempt
            self._settle([task])

    def remove_sandbox(self, key: str) -> None:
        """It lives no more."""
        sandbox = self.room.remove(key)
        if sandbox is None:
            return
        self._ready.has_room(sandbox.project)
        task = f"{sandbox.project}.{sandbox.task}"
        living = self._sandboxes.get(task, {})
        living.pop(key, None)
        if not living:
            self._sandboxes.pop(task, None)
        self._settle([task])

    def defer(self, key: str, until: datetime) -> None:
        """It can't begin before then, though nothing that was told says so."""
        waiter = self._waiters.get(key)
        if waiter is not None:
            waiter.until = until
            self._settle([key])

    # --- what it answers -----------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._waiters)

    def next(self, now: datetime) -> TaskFacts | None:
        """The task that is to begin now, if there is room for one. It stays until it is told of as not pending."""
        self._wake(now)
        key = next(iter(self._begun), None) or self._ready.first()
        return self._waiters[key].task if key else None

    def doomed(self) -> list[str]:
        """Tasks that will never begin: one that they depend on was not completed, or is not there."""
        return list(self._doomed)

    def overdue(self, now: datetime) -> list[str]:
        """Tasks of which a limit of time is over, pending or not."""
        return self._limits.due(now)

    def wakes_at(self) -> datetime | None:
        """When something is to be done though nothing changes, as far as that is known."""
        return min(filter(None, (self._later.first(), self._limits.first())), default=None)

    def oldest(self) -> float | None:
        """When the task was submitted that has waited longest for its turn, in seconds since 1970."""
        return self._ready.oldest()

    def score(self, key: str, now: datetime) -> float | None:
        """How early a pending task's turn is: the higher, the earlier."""
        waiter = self._waiters.get(key)
        return None if waiter is None else round(score_of(waiter.place[0], now.timestamp(), self._age), 3)

    def waits_for(self, key: str, now: datetime) -> str | None:
        """What a pending task waits for, in words."""
        self._wake(now)
        waiter = self._waiters.get(key)
        if waiter is None:
            return None
        unmet = self._ties.unmet(waiter.task)
        if unmet:
            more = f", and {len(unmet) - 1} more" if unmet[1:] else ""
            return f"{unmet[0][0]} has to be completed ({unmet[0][1] or 'gone'}){more}"
        ending = [attempt for attempt in self._sandboxes.get(key, {}).values() if attempt != waiter.task.attempt]
        if ending:
            return f"the sandbox of attempt {ending[0]} is still ending"
        if waiter.until is not None:
            return f"retry at {waiter.until:%Y-%m-%d %H:%M:%S} UTC"
        return self._turn_in_words(waiter)

    # --- what it does within -------------------------------------------------------------------------------------

    def _turn_in_words(self, waiter: Waiter) -> str:
        lacking = self.room.lacking(waiter.task.project, waiter.task.runtime)
        before = self._ready.before(waiter.place)
        turn = f"{before} {'task is' if before == 1 else 'tasks are'} before it" if before else "it is next"
        return f"{lacking}; {turn}" if lacking else turn

    def _enter(self, key: str, task: TaskFacts) -> None:
        known = self._waiters.get(key)
        if known is not None and known.task.depends_on != task.depends_on:
            self._leave(key)
        self._waiters[key] = Waiter(task, self._place(key, task), task.not_before)
        self._place_again(self._ties.tie(key, task))
        self._settle([key])

    def _leave(self, key: str) -> None:
        waiter = self._waiters.pop(key, None)
        if waiter is not None:
            self._place_again(self._ties.untie(key, waiter.task))
            self._settle([key])

    def _place(self, key: str, task: TaskFacts) -> Place:
        return place_of(task, self._ties.dependants(key), self._age)

    def _place_again(self, keys: Iterable[str]) -> None:
        """More or fewer depend on them."""
        for key in keys:
            waiter = self._waiters.get(key)
            if waiter is not None:
                waiter.place = self._place(key, waiter.task)
                self._settle([key])

    def _settle(self, keys: Iterable[str]) -> None:
        """Put each where it belongs: it has begun, can never begin, waits for something, or is ready."""
        for key in keys:
            self._begun.pop(key, None)
            self._doomed.pop(key, None)
            waiter = self._waiters.get(key)
            self._later.set(key, waiter.until if waiter else None)
            if waiter is not None and self._is_ready(key, waiter):
                self._ready.put(key, waiter.task.runtime, waiter.place)
            else:
                self._ready.discard(key)

    def _is_ready(self, key: str, waiter: Waiter) -> bool:
        attempts = self._sandboxes.get(key, {}).values()
        if waiter.until is not None:
            return False
        if waiter.task.attempt in attempts:
            self._begun[key] = None
            return False
        if self._ties.never(waiter.task):
            self._doomed[key] = None
            return False
        return not attempts and not self._ties.unmet(waiter.task)

    def _wake(self, now: datetime) -> None:
        for key in self._later.due(now):
            self._waiters[key].until = None
            self._settle([key])
