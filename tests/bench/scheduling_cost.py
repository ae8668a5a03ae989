"""The cost of one scheduling decision, with few waiting tasks and with many: the queue alone, without a broker.

A decision is all that the queue does when a sandbox has ended. The queue is notified, answers what the scheduler
requests at every tick, and chooses the next task. It is notified of that task and its new sandbox, and of a new task,
so that the number of waiting tasks stays the same.
"""

import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any, Final

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskFacts
from tests.bench.recorder import Recorder

FEW: Final = 100
MANY: Final = 10_000
_DECISIONS: Final = 1000
_PROJECTS: Final = 20
_BEGIN: Final = datetime(2026, 11, 20, tzinfo=UTC)
_LIMIT: Final = timedelta(hours=1)
"""The time limit of every task."""


class Line:
    """A queue with a constant number of waiting tasks. `took` is the seconds that the queue has used so far."""

    def __init__(self, waiting: int, live: int = 8) -> None:
        self._random = random.Random(1)
        self._number = 0
        self._live: list[str] = []
        self._now = _BEGIN
        self._queue = TaskQueue(SandboxLimits(total=live, project=live // 2), age=3600)
        self.took = 0.0
        for _ in range(waiting):
            self._submit()
        self._begin_all()

    def decide(self) -> float:
        """Make one decision, with all notifications that belong to it. Returns the seconds that the queue used."""
        self.took = 0.0
        self._now += timedelta(milliseconds=10)
        self._timed(self._queue.remove_sandbox, self._live.pop(0))
        self._timed(self._queue.unstartable)
        self._timed(self._queue.overdue, self._now)
        self._begin_all()
        self._timed(self._queue.oldest)
        self._timed(self._queue.wakes_at)
        return self.took

    def _begin_all(self) -> None:
        while (task := self._timed(self._queue.next, self._now)) is not None:
            self._begin(task)
            self._submit()

    def _begin(self, task: TaskFacts) -> None:
        sandbox = SandboxView(
            project=task.project, sandbox=f"sbx-{task.task}", state=SandboxState.REQUESTED, task=task.task,
            runtime=task.runtime, requested_at=self._now,
        )  # fmt: skip
        assigned = task.model_copy(update={"state": TaskState.ASSIGNED, "sandbox": sandbox.sandbox})
        self._live.append(f"{task.project}.{sandbox.sandbox}")
        self._timed(self._queue.change_sandbox, self._live[-1], sandbox)
        self._timed(self._queue.change_task, f"{task.project}.{task.task}", assigned)

    def _submit(self) -> None:
        self._number += 1
        name, project = f"task-{self._number}", f"p{self._random.randrange(_PROJECTS)}"
        task = TaskFacts(
            project=project, task=name, state=TaskState.PENDING, runtime="process", submitted_at=self._now,
            priority=self._random.choice(("critical", "high", "normal", "low")), limit_at=self._now + _LIMIT,
        )  # fmt: skip
        self._timed(self._queue.change_task, f"{project}.{name}", task)

    def _timed(self, call: Callable[..., Any], *given: Any) -> Any:
        begun = time.perf_counter()
        answer = call(*given)
        self.took += time.perf_counter() - begun
        return answer


async def measure(recorder: Recorder) -> None:
    """Measure the median microseconds of a decision with many waiting tasks and with few, in turns."""
    many, few = Line(MANY), Line(FEW)
    for _ in recorder.each("scheduling.decision"):
        took = [(many.decide(), few.decide()) for _ in range(_DECISIONS)]
        ours, baseline = (median(one[which] for one in took) * 1e6 for which in (0, 1))
        recorder.add("scheduling.decision", ours, baseline)
