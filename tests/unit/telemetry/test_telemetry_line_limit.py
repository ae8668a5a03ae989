"""The sender of messages does not determine how many lines are logged."""

from sandherd.bus.denied_subjects import source_of
from sandherd.telemetry.line_limit import LINE_SECONDS, MAX_SOURCES, LineLimit


def test_one_line_per_source_and_interval_counts_the_others() -> None:
    """The first occurrence is logged at once, then one line a minute with the number since, for each source."""
    limit = LineLimit()
    assert limit.add("a", 0) == 1
    assert not any(limit.add("a", 1) for _ in range(1000))
    assert limit.add("b", 1) == 1
    assert limit.add("a", LINE_SECONDS) == 1001
    assert limit.add("a", LINE_SECONDS) == 0


def test_any_number_of_sources_is_limited() -> None:
    """All sources beyond the maximum share one line, and none replaces a source that is counted separately."""
    limit = LineLimit()
    lines = [limit.add(f"source-{number}", 1) for number in range(10 * MAX_SOURCES)]
    assert sum(1 for times in lines if times) <= MAX_SOURCES + 1
    assert limit.add("source-0", 2) == 0
    assert limit.add("new", LINE_SECONDS + 2) == 1


def test_replies_count_as_one_source() -> None:
    """All reply subjects are one source, because each is used only once; other subjects are separate sources."""
    denied = 'nats: permissions violation for publish to "{}"'
    replies = {source_of(denied.format(f"_r_.abcdef.{number}")) for number in range(100)}
    assert len(replies) == 1
    assert source_of(denied.format("$kv.tasks.a")) != source_of(denied.format("$kv.tasks.b"))
    assert source_of("nats: permissions violation") == "nats: permissions violation"
