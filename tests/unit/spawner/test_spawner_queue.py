"""The queue: whose turn it is, within which limits, what the others wait for, and what a decision costs."""

import random
import sys
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SandboxState, TaskState
from spawner.tasks import scheduling
from spawner.tasks.queue import Queue
from spawner.tasks.record import TaskFacts
from spawner.tasks.room import Allowed
from spawner.tasks.scheduling import MOST_STEPS, place_of, score_of, turn_of
from tests.unit.spawner.queueing import AGE, BEGIN, Plain, begin, key_of, queue_of, sandbox, task, told

PRIORITIES = ("critical", "high", "normal", "low")
ROOMS = (
    Allowed(total=1),
    Allowed(total=4, project=2),
    Allowed(total=6, project=None, projects={"p1": 0, "p2": 3}, runtimes={"process": 2}),
    Allowed(total=3, project=1, projects={"p2": None}, runtimes={"other": 1}),
)


def after(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def names_in_turn(queue: Queue, now: datetime = BEGIN) -> list[str]:
    """Begin one after the other until there is no room, or none that may."""
    found = []
    while (view := queue.next(now)) is not None:
        begin(queue, view)
        found.append(view.task)
    return found


# --- turns -----------------------------------------------------------------------------------------------------------

tasks_of_any_kind = st.builds(
    lambda ago, priority, deadline: task(
        "t", ago, priority=priority, deadline=None if deadline is None else after(deadline)
    ),
    st.integers(0, 10 * int(AGE)),
    st.sampled_from(PRIORITIES),
    st.none() | st.integers(-100_000, 100_000),
)


@given(tasks_of_any_kind, st.integers(0, 100), tasks_of_any_kind, st.integers(0, 100))
def test_nobody_is_starved(one: TaskFacts, ones: int, other: TaskFacts, others: int) -> None:
    """What is submitted more than four ages later comes later: whatever its priority, deadline and dependants."""
    if other.submitted_at > one.submitted_at + timedelta(seconds=MOST_STEPS * AGE):
        assert place_of(one, ones, AGE) < place_of(other, others, AGE)
    begun = one.submitted_at.timestamp()
    assert begun - MOST_STEPS * AGE <= turn_of(one, ones, AGE) <= begun


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=50)
def test_under_a_flood_of_more_urgent_tasks_everybody_begins(seed: int, flood: int) -> None:
    """One place, and always more to do: nobody begins who came more than four ages after one that waits."""
    draw = random.Random(seed)
    queue, waiting, now = queue_of([], Allowed(total=1)), {}, 0.0
    for step in range(80):
        for number in range(draw.randint(1, 3)):
            view = task(
                f"t{step}-{number}", -now, priority=draw.choice(PRIORITIES), deadline=after(now + draw.random() * AGE)
            )
            waiting[key_of(view)] = view
            told(queue, view)
        now += draw.random() * AGE * flood / 60
        begun = queue.next(after(now))
        assert begun is not None
        del waiting[key_of(begun)]
        assert all(begun.submitted_at <= view.submitted_at + timedelta(seconds=4 * AGE) for view in waiting.values())
        begin(queue, begun)
        queue.remove_sandbox(key_of(sandbox(begun)))


def test_priority_age_deadline_and_dependants_count() -> None:
    """A step of priority is worth one age of waiting; so are ten that wait for it; and a deadline draws near."""
    waiting = [
        task("low-old", 2.5 * AGE, priority="low"),
        task("normal", 0),
        task("high", 0, priority="high"),
        task("soon", 0, priority="low", deadline=after(-2 * AGE)),
        task("wanted", 10, priority="normal"),
        *(task(f"w{number}", 0, depends_on=["wanted"]) for number in range(10)),
    ]
    queue = queue_of(waiting, Allowed(total=5))
    assert names_in_turn(queue) == ["soon", "low-old", "wanted", "high", "normal"]


@given(tasks_of_any_kind, st.integers(0, 9))
def test_more_of_anything_never_puts_a_task_back(view: TaskFacts, dependants: int) -> None:
    """A higher priority, one more that waits for it, a nearer deadline: the turn comes no later by it."""
    turn = turn_of(view, dependants, AGE)
    assert turn_of(view, dependants + 1, AGE) <= turn
    assert turn_of(view.model_copy(update={"priority": "critical"}), dependants, AGE) <= turn
    nearer = view.deadline and view.deadline - timedelta(seconds=60)
    assert turn_of(view.model_copy(update={"deadline": nearer}), dependants, AGE) <= turn


def test_the_score_grows_by_one_with_each_age_of_waiting() -> None:
    """Priorities are a point apart, and an hour of waiting is worth as much."""
    queue = queue_of([task("a", priority="high"), task("b", priority="low")])
    assert (queue.score("p1.a", BEGIN), queue.score("p1.b", BEGIN)) == (2, 0)
    assert (queue.score("p1.a", after(AGE)), queue.score("p1.b", after(AGE))) == (3, 1)
    assert queue.score("p1.none", BEGIN) is None
    assert score_of(0, 2 * AGE, AGE) == 2


def test_the_formula_stands_in_the_documents() -> None:
    """As it stands above the function, with its numbers."""
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text(encoding="utf-8")
    formula = [line.strip() for line in (scheduling.__doc__ or "").splitlines() if line.strip().startswith("turn =")]
    assert len(formula) == 3
    assert all(line in page for line in formula)
    for priority, weight in scheduling.WEIGHTS.items():
        assert f"{priority} {weight}" in formula[0]
        assert turn_of(task("t", priority=priority), 0, AGE) == BEGIN.timestamp() - weight * AGE
    assert turn_of(task("t", priority="low"), 99, AGE) == BEGIN.timestamp() - AGE


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_full_project_or_runtime_keeps_nobody_else_waiting() -> None:
    """The next is the first for which there is room; each waits for its own."""
    allowed = Allowed(total=4, project=2, projects={"p2": 1}, runtimes={"other": 1})
    waiting = [task(f"a{number}", 100 - number) for number in range(4)]
    waiting += [task(f"b{number}", 50 - number, project="p2") for number in range(2)]
    waiting += [task(f"c{number}", 10 - number, project="p3", runtime="other") for number in range(2)]
    queue = queue_of(waiting, allowed)
    assert names_in_turn(queue) == ["a0", "a1", "b0", "c0"]
    assert queue.waits_for("p1.a2", BEGIN) == "2 of 2 sandboxes of project p1 live; it is next"
    assert queue.waits_for("p2.b1", BEGIN) == "1 of 1 sandboxes of project p2 live; 2 tasks are before it"
    assert queue.waits_for("p3.c1", BEGIN) == "1 of 1 sandboxes in other live; 3 tasks are before it"
    queue.remove_sandbox(key_of(sandbox(waiting[-2])))
    assert names_in_turn(queue) == ["c1"]
    queue.remove_sandbox(key_of(sandbox(waiting[0])))
    assert names_in_turn(queue) == ["a2"]


def test_a_sandbox_without_a_task_takes_its_room_too() -> None:
    """Whoever asked for it, it lives."""
    queue = queue_of([task("a")], Allowed(total=1))
    own = SandboxView(project="p9", sandbox="sbx-own", state=SandboxState.PAUSED, runtime="process", requested_at=BEGIN)
    told(queue, own)
    assert queue.next(BEGIN) is None
    assert queue.waits_for("p1.a", BEGIN) == "1 of 1 sandboxes live; it is next"
    told(queue, own.model_copy(update={"state": SandboxState.TERMINATED}))
    assert names_in_turn(queue) == ["a"]


def test_one_whose_sandbox_was_requested_already_needs_no_room() -> None:
    """A scheduler that died between its two writes has taken the room; nobody else can give it back."""
    waiting = task("a")
    queue = queue_of([task("older", 9), waiting], Allowed(total=1))
    told(queue, sandbox(waiting, SandboxState.REQUESTED))
    assert names_in_turn(queue) == ["a"]


# --- what a task waits for -------------------------------------------------------------------------------------------


def test_a_task_waits_until_all_that_it_depends_on_is_completed() -> None:
    """And says for which; a state that is not an end changes nothing."""
    one, two = task("one", 5), task("two", 4)
    queue = queue_of([task("c", 9, depends_on=["one", "two"]), one, two])
    assert queue.waits_for("p1.c", BEGIN) == "one has to be completed (pending), and 1 more"
    assert names_in_turn(queue) == ["one", "two"]
    told(queue, one.model_copy(update={"state": TaskState.RUNNING}))
    told(queue, two.model_copy(update={"state": TaskState.COMPLETED}))
    assert queue.waits_for("p1.c", BEGIN) == "one has to be completed (running)"
    assert queue.next(BEGIN) is None
    told(queue, one.model_copy(update={"state": TaskState.COMPLETED}))
    assert names_in_turn(queue) == ["c"]


@pytest.mark.parametrize("end", [TaskState.FAILED, TaskState.CANCELLED, None])
def test_what_depends_on_a_failure_is_pointed_out(end: TaskState | None) -> None:
    """It will never begin; neither will one that waits for what is not there."""
    one = task("one", state=TaskState.RUNNING)
    queue = queue_of([one, task("c", depends_on=["one"]), task("d", depends_on=["c"])])
    assert queue.doomed() == []
    if end is None:
        queue.remove_task("p1.one")
    else:
        told(queue, one.model_copy(update={"state": end}))
    assert queue.doomed() == ["p1.c"]
    assert queue.next(BEGIN) is None


def test_a_retry_waits_for_its_time_and_for_the_end_of_its_last_sandbox() -> None:
    """Never twice at once: until the sandbox of the attempt before has ended there is no next one."""
    again = task("a", attempt=2, not_before=after(10))
    queue = queue_of([again])
    last = sandbox(task("a"), SandboxState.STOPPING)
    told(queue, last)
    assert queue.wakes_at() == after(10)
    assert queue.waits_for("p1.a", BEGIN) == "the sandbox of attempt 1 is still ending"
    assert queue.next(after(11)) is None
    told(queue, last.model_copy(update={"state": SandboxState.TERMINATED}))
    assert names_in_turn(queue, after(11)) == ["a"]
    queue = queue_of([again])
    assert queue.next(after(9)) is None
    assert queue.waits_for("p1.a", after(9)) == "retry at 2026-11-20 00:00:10 UTC"
    assert names_in_turn(queue, after(10)) == ["a"]


def test_what_could_not_begin_is_not_tried_again_at_once() -> None:
    """Others have their turn meanwhile."""
    queue = queue_of([task("a", 5), task("b", 1)], Allowed(total=9))
    queue.defer("p1.a", after(1))
    assert names_in_turn(queue) == ["b"]
    assert queue.wakes_at() == after(1)
    assert names_in_turn(queue, after(1)) == ["a"]


def test_limits_of_time_are_told_until_the_task_has_ended() -> None:
    """Of pending and of running tasks, the earliest first."""
    one = task("one", limit_at=after(5), state=TaskState.RUNNING)
    queue = queue_of([one, task("two", limit_at=after(3)), task("never")])
    assert queue.wakes_at() == after(3)
    assert queue.overdue(after(4)) == ["p1.two"]
    assert queue.overdue(after(5)) == ["p1.two", "p1.one"]
    told(queue, one.model_copy(update={"state": TaskState.FAILED, "limit_at": None}))
    queue.remove_task("p1.two")
    assert queue.overdue(after(9)) == []
    assert queue.wakes_at() is None


# --- cost ------------------------------------------------------------------------------------------------------------


def calls_of_decisions(waiting: int) -> int:
    """How many functions are called for a hundred decisions."""
    draw = random.Random(1)
    views = [
        task(f"t{number}", draw.random() * AGE, project=f"p{number % 20}", priority=draw.choice(PRIORITIES))
        for number in range(waiting)
    ]
    queue = queue_of(views, Allowed(total=5, project=3))
    calls = 0

    def count(_frame: FrameType, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    for number in range(100):
        sys.setprofile(count)
        begun = queue.next(BEGIN)
        assert begun is not None
        begin(queue, begun)
        queue.remove_sandbox(key_of(sandbox(begun)))
        told(queue, begun.model_copy(update={"task": f"n{number}"}))
        sys.setprofile(None)
    return calls


def test_a_decision_costs_the_same_however_many_wait() -> None:
    """Counted in calls, for time would depend on the machine: the bench measures that."""
    assert calls_of_decisions(10_000) <= 1.1 * calls_of_decisions(100)


def test_what_comes_and_goes_leaves_nothing_behind() -> None:
    """A queue lives for months: what it holds on to is bounded by what waits."""
    queue = queue_of([task("first", 9)], Allowed(total=1, projects={"p1": 0}))
    for number in range(5000):
        told(queue, task(f"t{number}"))
        queue.remove_task(f"p1.t{number}")
    kept = sum(len(line) for line in queue._ready._lines.values())
    assert kept < 2000
    assert len(queue) == 1


# --- the same as a plain one -----------------------------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """Whatever is told, in whatever order: the queue says what one says who looks at everything anew."""

    @initialize(allowed=st.sampled_from(ROOMS))
    def start(self, allowed: Allowed) -> None:
        self.now = 0.0
        self.number = 0
        self.plain = Plain(allowed)
        self.queue = Queue(allowed, AGE)

    def tell(self, *views: TaskFacts | SandboxView) -> None:
        for view in views:
            known: dict[str, Any] = self.plain.tasks if isinstance(view, TaskFacts) else self.plain.sandboxes
            known[key_of(view)] = view
        told(self.queue, *views)

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
        self.tell(
            task(f"t{self.number}", ago - self.now, project=project, runtime=runtime, priority=priority,
                 deadline=after(deadline) if deadline is not None else None, depends_on=depends_on)
        )  # fmt: skip

    @rule()
    def begin_next(self) -> None:
        view = self.queue.next(after(self.now))
        if view is not None:
            begun = self.plain.begun(after(self.now))
            assert begun or self.plain.has_room(view)
            self.tell(sandbox(view, SandboxState.REQUESTED))
            self.tell(view.model_copy(update={"state": TaskState.ASSIGNED}))

    @rule()
    def begin_and_die(self) -> None:
        """The first of the scheduler's writes alone."""
        view = self.queue.next(after(self.now))
        if view is not None:
            self.tell(sandbox(view, SandboxState.REQUESTED))

    @rule(data=st.data(), end=st.sampled_from([TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED]))
    def end_task(self, data: st.DataObject, end: TaskState) -> None:
        view = self.some(data, TaskState.ASSIGNED, TaskState.PENDING)
        if view is not None:
            self.tell(view.model_copy(update={"state": end}))

    @rule(data=st.data(), rest=st.integers(0, 50))
    def try_again(self, data: st.DataObject, rest: int) -> None:
        view = self.some(data, TaskState.ASSIGNED, TaskState.FAILED)
        if view is not None:
            changed = {"state": TaskState.PENDING, "attempt": view.attempt + 1, "not_before": after(self.now + rest)}
            self.tell(view.model_copy(update=changed))

    @rule(data=st.data())
    def end_sandbox(self, data: st.DataObject) -> None:
        live = self.plain.live()
        if live:
            self.tell(data.draw(st.sampled_from(live)).model_copy(update={"state": SandboxState.TERMINATED}))

    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        view = self.some(data, TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELLED)
        if view is not None:
            del self.plain.tasks[key_of(view)]
            self.queue.remove_task(key_of(view))

    @precondition(lambda self: bool(self.plain.tasks))
    @rule(data=st.data())
    def say_again(self, data: st.DataObject) -> None:
        """A watch that begins anew tells everything once more."""
        told(self.queue, data.draw(st.sampled_from(list(self.plain.tasks.values()))))

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
        assert set(self.queue.doomed()) == {
            key_of(view) for view in self.plain.awake(now) if self.plain.doomed(view) and view not in begun
        }

    @invariant()
    def everybody_is_told_why_it_waits(self) -> None:
        """In words, and with its place among those that are ready."""
        now = after(self.now)
        ready = self.plain.ready(now)
        for view in self.plain.pending():
            said = self.queue.waits_for(key_of(view), now)
            assert said
            if view in ready:
                before = ready.index(view)
                assert ("it is next" in said) if before == 0 else (f"{before} task" in said)

    def teardown(self) -> None:
        """Kept up to date or made anew from what stands at the end: all that wait have the same order."""
        if not hasattr(self, "plain"):
            return
        rebuilt = Queue(self.plain.allowed, AGE)
        views = [*self.plain.tasks.values(), *self.plain.sandboxes.values()]
        random.Random(self.number).shuffle(views)
        told(rebuilt, *views)
        now = after(self.now)
        assert {key: rebuilt.score(key, now) for key in self.plain.tasks} == {
            key: self.queue.score(key, now) for key in self.plain.tasks
        }
        if not self.plain.begun(now):
            assert names_in_turn(rebuilt, now) == names_in_turn(self.queue, now)


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
