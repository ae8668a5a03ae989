"""A fair queue keeps the order within a lane, and takes turns between projects and between their lanes."""

from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.dead_letters import WINDOW, DeadLetterLimiter
from sandherd.bus.fair_queue import FairQueue, Lane
from sandherd.bus.intake import Intake, IntakeRates
from sandherd.bus.lanes import lane_of
from sandherd.bus.outcomes import Delivery
from sandherd.bus.rate_limit import Rate, RateLimiter

AT = datetime(2026, 11, 22, tzinfo=UTC)
LOUD, QUIET = Lane("loud", "sbx-a"), Lane("quiet", "sbx-b")
LANES = st.sampled_from([Lane(project, entity) for project in ("p1", "p2") for entity in ("a", "b", "c")])


def delivery(
    subject: str = "sandherd.v1.event.p1.sbx-a.agent.completed", data: bytes = b"{}", number: int = 1
) -> Delivery:
    return Delivery(subject, data, "EVENTS", number, 1, AT)


def test_a_project_with_much_does_not_delay_one_with_little() -> None:
    """Behind 10,000 messages of one project, another's message is the second to leave."""
    queue: FairQueue[str] = FairQueue()
    for number in range(10_000):
        queue.put(Lane("loud", f"sbx-{number % 50}"), "loud")
    queue.put(QUIET, "quiet")
    assert [queue.take(), queue.take()] == ["loud", "quiet"]


def test_a_sandbox_with_much_does_not_delay_its_neighbour() -> None:
    """The same between two sandboxes of one project."""
    queue: FairQueue[str] = FairQueue()
    for _ in range(1000):
        queue.put(LOUD, "loud")
    queue.put(LOUD._replace(entity="sbx-b"), "neighbour")
    assert [queue.take(), queue.take()] == ["loud", "neighbour"]


def test_a_busy_lane_waits_and_one_that_is_put_back_comes_first() -> None:
    """Of a lane one item is out at a time; what is put back is taken before what came after it."""
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
def test_lanes_keep_their_order_whatever_happens(steps: list[tuple[Lane, bool]]) -> None:
    """However putting and taking are mixed, each lane's items leave in order, and none is lost."""
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


def test_a_rate_lets_bursts_through_and_spreads_floods() -> None:
    """Within burst and rate nothing waits; what exceeds them waits as long as it came too early."""
    limiter = RateLimiter(Rate(per_second=10, burst=20))
    assert [limiter.excess("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert limiter.excess("a", 0.0) > 0
    assert limiter.excess("b", 0.0) == 0.0
    assert limiter.excess("a", 10.0) == 0.0


def test_a_flood_is_handed_back_in_its_order_and_others_are_not() -> None:
    """Delays of one lane never shrink below those of what came before it; another lane has none."""
    intake, now = Intake(IntakeRates(Rate(10, 10), Rate(1000, 1000))), AT.timestamp()
    due = [intake.delay(LOUD, AT, 100, now + number / 1000) + now + number / 1000 for number in range(100)]
    late = [moment for moment in due[10:] if moment > now + 1]
    assert late
    assert late == sorted(late)
    assert intake.delay(QUIET, AT, 100, now) == 0.0


def test_reading_a_backlog_quickly_is_no_flood() -> None:
    """An hour's events of a sandbox, read within a moment, are all taken: the rate is that of their publication."""
    intake, now = Intake(IntakeRates(Rate(10, 10), Rate(1000, 1000))), (AT + timedelta(hours=2)).timestamp()
    assert {intake.delay(LOUD, AT + timedelta(seconds=number), 100, now) for number in range(3600)} == {0.0}


def test_dead_letters_of_a_source_have_a_limit_and_a_summary() -> None:
    """Beyond the limit they are counted, until a minute is over; another source has its own limit."""
    limiter = DeadLetterLimiter(limit=3)
    assert [limiter.allows(LOUD, delivery(number=n), 0.0) for n in range(5)] == [True] * 3 + [False] * 2
    assert limiter.allows(QUIET, delivery(), 0.0)
    assert limiter.ended(WINDOW - 1) == []
    assert limiter.ended(WINDOW) == [(delivery(number=4), 2)]
    assert limiter.allows(LOUD, delivery(), WINDOW)


def test_lanes_are_read_from_any_message() -> None:
    """An event's from its subject; a command's from what it names, and hostile documents have one of their own."""
    subject = "sandherd.v1.command.spawner.cancel_task.p1"
    assert lane_of(delivery()) == Lane("p1", "sbx-a")
    assert lane_of(delivery(subject, b'{"data": {"task": "task-1"}}')) == Lane("p1", "task-1")
    assert lane_of(delivery(subject, b'{"data": {"sandbox": "sbx-1", "task": "t"}}')) == Lane("p1", "sbx-1")
    for junk in (b"", b"x", b"[]", b'{"data": 1}', b'{"data": {"task": 3}}', b"[" * 100_000, b"\xff"):
        assert lane_of(delivery(subject, junk)) == Lane("p1", "")
