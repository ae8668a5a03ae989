"""The queue, compared with a simple one that recomputes everything, over random histories."""

import random
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.task_queue import TaskQueue
from spawner.tasks.task_record import TaskFacts
from tests.unit.spawner.queue_model import (
    AGE,
    PRIORITIES,
    Plain,
    after,
    key_of,
    names_in_order,
    notify,
    sandbox,
    task,
)

CAPACITIES = (
    SandboxLimits(total=1),
    SandboxLimits(total=4, project=2),
    SandboxLimits(total=6, project=None, projects={"p1": 0, "p2": 3}, runtimes={"process": 2}),
    SandboxLimits(total=3, project=1, projects={"p2": None}, runtimes={"other": 1}),
)


class Histories(RuleBasedStateMachine):
    """After any changes in any order, the queue equals one that is built from all records."""

    @initialize(allowed=st.sampled_from(CAPACITIES))
    def start(self, allowed: SandboxLimits) -> None:
        self.now = 0.0
        self.number = 0
        self.plain = Plain(allowed)
        self.queue = TaskQueue(allowed, AGE)

    def notify_queue(self, *views: TaskFacts | SandboxView) -> None:
        for view in views:
            known: dict[str, Any] = self.plain.tasks if isinstance(view, TaskFacts) else self.plain.sandboxes
            known[key_of(view)] = view
        notify(self.queue, *views)

    def some(self, data: st.DataObject, *states: TaskState) -> TaskFacts | None:
        found = [view for view in self.plain.tasks.values() if view.state in states]
        return data.draw(st.sampled_from(found)) if found else None

    @rule(
        data=st.data(),
        project=st.sampled_from(["p1", "p2", "p3"]),
        runtime=st.sampled_from(["process", "other"]),
        priority=st.sampled_from(PRIORITIES),
        deadline=st.none() | st.integers(-5000, 20_000),
        ago=st.integers(0, 3),
    )
    def submit(
        self, data: st.DataObject, project: str, runtime: str, priority: str, deadline: int | None, ago: int
    ) -> None:
        self.number += 1
        others = [view.task for view in self.plain.tasks.values() if view.project == project]
        depends_on = data.draw(st.lists(st.sampled_from(others), max_size=2, unique=True)) if others else []
        self.notify_queue(
            task(f"t{self.number}", ago - self.now, project=project, runtime=runtime, priority=priority,
                 deadline=after(deadline) if deadline is not None else None, depends_on=depends_on)
        )  # fmt: skip

    @rule()
    def begin_next(self) -> None:
        view = self.queue.next(after(self.now))
        if view is not None:
            begun = self.plain.begun(after(self.now))
            assert begun or self.plain.has_capacity(view)
            self.notify_queue(sandbox(view, SandboxState.REQUESTED))
            self.notify_queue(view.model_copy(update={"state": TaskState.ASSIGNED}))

    @rule()
    def begin_and_die(self) -> None:
        """The first of the scheduler's writes alone."""
        view = self.queue.next(after(self.now))
        if view is not None:
            self.notify_queue(sandbox(view, SandboxState.REQUESTED))

    @rule(data=st.data(), end=st.sampled_from([TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED]))
    def end_task(self, data: st.DataObject, end: TaskState) -> None:
        view = self.some(data, TaskState.ASSIGNED, TaskState.PENDING)
        if view is not None:
            self.notify_queue(view.model_copy(update={"state": end}))

    @rule(data=st.data(), rest=st.integers(0, 50))
    def try_again(self, data: st.DataObject, rest: int) -> None:
        view = self.some(data, TaskState.ASSIGNED, TaskState.FAILED)
        if view is not None:
            changed = {"state": TaskState.PENDING, "attempt": view.attempt + 1, "not_before": after(self.now + rest)}
            self.notify_queue(view.model_copy(update=changed))

    @rule(data=st.data())
    def end_sandbox(self, data: st.DataObject) -> None:
        live = self.plain.live()
        if live:
            self.notify_queue(data.draw(st.sampled_from(live)).model_copy(update={"state": SandboxState.TERMINATED}))

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        view = self.some(data, TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
        if view is not None:
            del self.plain.tasks[key_of(view)]
            self.queue.remove_task(key_of(view))

    @precondition(lambda self: bool(self.plain.tasks))
    @rule(data=st.data())
    def repeat_notification(self, data: st.DataObject) -> None:
        """A restarted watch reports every record again."""
        notify(self.queue, data.draw(st.sampled_from(list(self.plain.tasks.values()))))

    @rule(seconds=st.sampled_from([0.5, 7, 3000]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def the_same_is_next(self) -> None:
        now = after(self.now)
        found, begun = self.queue.next(now), self.plain.begun(now)
        if begun:
            assert found in begun
        else:
            assert found == self.plain.next(now)
        assert set(self.queue.unstartable()) == {
            key_of(view) for view in self.plain.awake(now) if self.plain.unstartable(view) and view not in begun
        }

    @invariant()
    def the_same_has_waited_longest(self) -> None:
        """Of those that could begin, whether there is capacity or not."""
        now = after(self.now)
        self.queue.next(now)
        submitted = [view.submitted_at.timestamp() for view in self.plain.ready(now)]
        assert self.queue.oldest() == min(submitted, default=None)

    @invariant()
    def every_task_has_a_wait_reason(self) -> None:
        """In words, and with its place among those that are ready."""
        now = after(self.now)
        ready = self.plain.ready(now)
        for view in self.plain.pending():
            reason = self.queue.waits_for(key_of(view), now)
            assert reason
            if view in ready:
                before = ready.index(view)
                assert ("it is next" in reason) if before == 0 else (f"{before} task" in reason)

    def teardown(self) -> None:
        """An updated queue and one that is built from the final records have the same order of waiting tasks."""
        if not hasattr(self, "plain"):
            return
        rebuilt = TaskQueue(self.plain.allowed, AGE)
        views: list[TaskFacts | SandboxView] = [*self.plain.tasks.values(), *self.plain.sandboxes.values()]
        random.Random(self.number).shuffle(views)
        notify(rebuilt, *views)
        now = after(self.now)
        assert {key: rebuilt.score(key, now) for key in self.plain.tasks} == {
            key: self.queue.score(key, now) for key in self.plain.tasks
        }
        if not self.plain.begun(now):
            assert names_in_order(rebuilt, now) == names_in_order(self.queue, now)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
