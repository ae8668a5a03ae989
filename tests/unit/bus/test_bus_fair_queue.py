"""A fair queue preserves the order within a lane, and alternates between projects and between their lanes."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.consumers.dead_letters import (
    EXCERPT_BYTES,
    PROJECT_BYTES,
    PROJECT_SHARE,
    WINDOW_SECONDS,
    DeadLetterLimiter,
)
from sandherd.bus.consumers.fair_queue import FairQueue, Lane, lane_of
from sandherd.bus.consumers.intake import Intake, IntakeRates
from sandherd.bus.consumers.outcomes import Delivery
from sandherd.bus.rate_limit import Rate, RateLimiter

AT = datetime(2026, 11, 22, tzinfo=UTC)
LOUD, QUIET = Lane("loud", "sbx-a"), Lane("quiet", "sbx-b")
LANES = st.sampled_from([Lane(project, entity) for project in ("p1", "p2") for entity in ("a", "b", "c")])


def delivery(
    subject: str = "sandherd.v1.event.p1.sbx-a.agent.completed", data: bytes = b"{}", number: int = 1
) -> Delivery:
    return Delivery(subject, data, "EVENTS", number, 1, AT)


def test_busy_project_does_not_delay_another() -> None:
    """Behind 10,000 messages of one project, another's message is the second to leave."""
    queue: FairQueue[str] = FairQueue()
    for number in range(10_000):
        queue.put(Lane("loud", f"sbx-{number % 50}"), "loud")
    queue.put(QUIET, "quiet")
    assert [queue.take(), queue.take()] == ["loud", "quiet"]


def test_busy_sandbox_does_not_delay_its_neighbour() -> None:
    """Behind 1,000 messages of one sandbox, its neighbour's message is the second to leave."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(1000):
        queue.put(LOUD, "loud")
    queue.put(LOUD._replace(entity="sbx-b"), "neighbour")
    assert [queue.take(), queue.take()] == ["loud", "neighbour"]


def test_busy_lane_waits_and_returned_item_comes_first() -> None:
    """One item of a lane is out at a time; a returned item is taken before later ones."""
    queue: FairQueue[int] = FairQueue()
    for number in range(3):
        queue.put(LOUD, number)
    assert queue.take() == 0
    assert queue.take() is None
    queue.put_back(LOUD, 0)
    assert queue.take() == 0
    queue.release(LOUD)
    assert queue.take() == 1
    assert len(queue) == 1


@given(st.lists(st.tuples(LANES, st.booleans())))
def test_lanes_are_ordered_under_any_mix_of_put_and_take(steps: list[tuple[Lane, bool]]) -> None:
    """Each lane's items leave in order, and none is lost."""
    queue: FairQueue[tuple[Lane, int]] = FairQueue()
    left: list[tuple[Lane, int]] = []
    for number, (lane, take) in enumerate(steps):
        queue.put(lane, (lane, number))
        if take and (item := queue.take()) is not None:
            left.append(item)
            queue.release(item[0])
    while (item := queue.take()) is not None:
        left.append(item)
        queue.release(item[0])
    assert sorted(left, key=lambda item: item[1]) == [(lane, number) for number, (lane, _) in enumerate(steps)]
    for lane in {lane for lane, _ in steps}:
        numbers = [number for of, number in left if of == lane]
        assert numbers == sorted(numbers)


def test_rate_permits_bursts_and_spreads_floods() -> None:
    """Within burst and rate nothing waits; what exceeds them waits as long as it came too early."""
    limiter = RateLimiter(Rate(per_second=10, burst=20))
    assert [limiter.excess("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert limiter.excess("a", 0.0) > 0
    assert limiter.excess("b", 0.0) == 0.0
    assert limiter.excess("a", 10.0) == 0.0


def test_flooding_lane_is_delayed_in_order() -> None:
    """Delays of one lane never shrink below those of earlier items; another lane has none."""
    intake, now = Intake(IntakeRates(Rate(10, 10), Rate(1000, 1000))), AT.timestamp()
    due = [intake.delay(LOUD, AT, 100, now + number / 1000) + now + number / 1000 for number in range(100)]
    late = [moment for moment in due[10:] if moment > now + 1]
    assert late
    assert late == sorted(late)
    assert intake.delay(QUIET, AT, 100, now) == 0.0


def test_backlog_read_quickly_is_no_flood() -> None:
    """An hour's events read within a moment are all accepted: the rate is that of their publication."""
    intake, now = Intake(IntakeRates(Rate(10, 10), Rate(1000, 1000))), (AT + timedelta(hours=2)).timestamp()
    assert {intake.delay(LOUD, AT + timedelta(seconds=number), 100, now) for number in range(3600)} == {0.0}


def test_dead_letters_of_a_source_have_a_limit_and_a_summary() -> None:
    """Beyond the limit they are counted, until a minute is over; another source has its own limit."""
    limiter = DeadLetterLimiter(limit=3)
    assert [limiter.allows(LOUD, delivery(number=n), 0.0) for n in range(5)] == [2] * 3 + [None] * 2
    assert limiter.allows(QUIET, delivery(), 0.0) == 2
    assert limiter.pop_ended_windows(WINDOW_SECONDS - 1) == []
    assert limiter.pop_ended_windows(WINDOW_SECONDS) == [(delivery(number=4), 2)]
    assert limiter.allows(LOUD, delivery(), WINDOW_SECONDS) == 2


def test_dead_letters_are_limited_per_project() -> None:
    """A client that names another task in each bad command gets no more letters; another project has its own limit."""
    limiter = DeadLetterLimiter(limit=3)
    sizes = [limiter.allows(Lane("p1", f"task-{n}"), delivery(number=n), 0.0) for n in range(1000)]
    assert sizes == [2] * (3 * PROJECT_SHARE) + [None] * (1000 - 3 * PROJECT_SHARE)
    assert limiter.allows(Lane("p2", "task-1"), delivery(), 0.0) == 2
    assert limiter.pop_ended_windows(WINDOW_SECONDS) == [(delivery(number=999), 1000 - 3 * PROJECT_SHARE)]


def test_large_dead_letters_are_stored_as_excerpts() -> None:
    """This applies once a project's bytes of a window are used up; a short letter is stored whole."""
    limiter, large = DeadLetterLimiter(limit=60), b"x" * (PROJECT_BYTES // 2)
    sizes = [limiter.allows(Lane("p1", "t"), delivery(data=large, number=n), 0.0) for n in range(4)]
    assert sizes == [len(large), len(large), EXCERPT_BYTES, EXCERPT_BYTES]
    assert limiter.allows(Lane("p1", "t"), delivery(data=b"{}"), 0.0) == 2
    assert limiter.allows(Lane("p2", "t"), delivery(data=large), 0.0) == len(large)
    assert limiter.pop_ended_windows(WINDOW_SECONDS) == []
    assert limiter.allows(Lane("p1", "t"), delivery(data=large), WINDOW_SECONDS) == len(large)


def test_lane_is_read_from_any_message() -> None:
    """An event's is its subject; a command's is what it names, and hostile documents have one of their own."""
    subject = "sandherd.v1.command.spawner.cancel_task.p1"
    assert lane_of(delivery()) == Lane("p1", "sbx-a")
    assert lane_of(delivery(subject, b'{"data": {"task": "task-1"}}')) == Lane("p1", "task-1")
    assert lane_of(delivery(subject, b'{"data": {"sandbox": "sbx-1", "task": "t"}}')) == Lane("p1", "sbx-1")
    for junk in (b"", b"x", b"[]", b'{"data": 1}', b'{"data": {"task": 3}}', b"[" * 100_000, b"\xff"):
        assert lane_of(delivery(subject, junk)) == Lane("p1", "")
