"""The order of tasks in the queue: the formula, its factors, and that no task is starved."""

import random
from datetime import timedelta
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from spawner.tasks import scheduling_order
from spawner.tasks.capacity import SandboxLimits
from spawner.tasks.scheduling_order import MAX_STEPS, position_of, scheduling_time_of, score_of
from spawner.tasks.task_record import TaskFacts
from tests.unit.spawner.queue_model import (
    AGE,
    BEGIN,
    PRIORITIES,
    after,
    begin,
    key_of,
    names_in_order,
    notify,
    queue_of,
    sandbox,
    task,
)

tasks_of_any_kind = st.builds(
    lambda ago, priority, deadline: task(
        "t", ago, priority=priority, deadline=None if deadline is None else after(deadline)
    ),
    st.integers(0, 10 * int(AGE)),
    st.sampled_from(PRIORITIES),
    st.none() | st.integers(-100_000, 100_000),
)


@given(tasks_of_any_kind, st.integers(0, 100), tasks_of_any_kind, st.integers(0, 100))
def test_no_task_is_starved(one: TaskFacts, ones: int, other: TaskFacts, others: int) -> None:
    """A task that is submitted more than four ages later is scheduled later, whatever its priority and deadline are."""
    if other.submitted_at > one.submitted_at + timedelta(seconds=MAX_STEPS * AGE):
        assert position_of(one, ones, AGE) < position_of(other, others, AGE)
    begun = one.submitted_at.timestamp()
    assert begun - MAX_STEPS * AGE <= scheduling_time_of(one, ones, AGE) <= begun


@given(st.integers(0, 2**32), st.integers(1, 60))
@settings(max_examples=50)
def test_every_task_starts_under_a_flood_of_urgent_ones(seed: int, flood: int) -> None:
    """With capacity for one task, no task starts that was submitted more than four ages after a waiting task."""
    draw = random.Random(seed)
    queue, waiting, now = queue_of([], SandboxLimits(total=1)), {}, 0.0
    for step in range(80):
        for number in range(draw.randint(1, 3)):
            view = task(
                f"t{step}-{number}", -now, priority=draw.choice(PRIORITIES), deadline=after(now + draw.random() * AGE)
            )
            waiting[key_of(view)] = view
            notify(queue, view)
        now += draw.random() * AGE * flood / 60
        begun = queue.next(after(now))
        assert begun is not None
        del waiting[key_of(begun)]
        assert all(begun.submitted_at <= view.submitted_at + timedelta(seconds=4 * AGE) for view in waiting.values())
        begin(queue, begun)
        queue.remove_sandbox(key_of(sandbox(begun)))


def test_priority_age_deadline_and_dependants_count() -> None:
    """A step of priority is worth one age of waiting, as are ten dependants. A near deadline counts, too."""
    waiting = [
        task("low-old", 2.5 * AGE, priority="low"),
        task("normal", 0),
        task("high", 0, priority="high"),
        task("soon", 0, priority="low", deadline=after(-2 * AGE)),
        task("wanted", 10, priority="normal"),
        *(task(f"w{number}", 0, depends_on=["wanted"]) for number in range(10)),
    ]
    queue = queue_of(waiting, SandboxLimits(total=5))
    assert names_in_order(queue) == ["soon", "low-old", "wanted", "high", "normal"]


@given(tasks_of_any_kind, st.integers(0, 9))
def test_higher_urgency_never_delays_a_task(view: TaskFacts, dependants: int) -> None:
    """A higher priority, one more dependant or a nearer deadline never makes the scheduling time later."""
    latest = scheduling_time_of(view, dependants, AGE)
    assert scheduling_time_of(view, dependants + 1, AGE) <= latest
    assert scheduling_time_of(view.model_copy(update={"priority": "critical"}), dependants, AGE) <= latest
    nearer = view.deadline and view.deadline - timedelta(seconds=60)
    assert scheduling_time_of(view.model_copy(update={"deadline": nearer}), dependants, AGE) <= latest


def test_score_grows_by_one_with_each_age() -> None:
    """Two neighbouring priorities differ by one point, and so does each age of waiting."""
    queue = queue_of([task("a", priority="high"), task("b", priority="low")])
    assert (queue.score("p1.a", BEGIN), queue.score("p1.b", BEGIN)) == (2, 0)
    assert (queue.score("p1.a", after(AGE)), queue.score("p1.b", after(AGE))) == (3, 1)
    assert queue.score("p1.none", BEGIN) is None
    assert score_of(0, 2 * AGE, AGE) == 2


def test_formula_is_in_the_documentation() -> None:
    """The page has the formula of the docstring, with its numbers."""
    page = (Path(__file__).parents[3] / "docs" / "scheduling.md").read_text(encoding="utf-8")
    lines = (line.strip() for line in (scheduling_order.__doc__ or "").splitlines())
    formula = [line for line in lines if line.startswith("scheduling_time =")]
    assert len(formula) == 3
    assert all(line in page for line in formula)
    for priority, weight in scheduling_order.WEIGHTS.items():
        assert f"{priority} {weight}" in formula[0]
        assert scheduling_time_of(task("t", priority=priority), 0, AGE) == BEGIN.timestamp() - weight * AGE
    assert scheduling_time_of(task("t", priority="low"), 99, AGE) == BEGIN.timestamp() - AGE
