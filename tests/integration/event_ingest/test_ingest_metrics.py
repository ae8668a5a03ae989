"""event-ingest counts stored events once, and its gauges show missing ones."""

from datetime import UTC, datetime, timedelta
from typing import Any

from prometheus_client import CollectorRegistry

from event_ingest.gauges import IngestGauges, oldest_age
from event_ingest.ingest import Ingest
from sandherd.contracts.subjects import Principal
from sandherd.telemetry.meters import Meters


class Counted:
    """A registry of metrics whose values a test can read."""

    def __init__(self, history: Any) -> None:
        self.registry = CollectorRegistry()
        history.ingest = Ingest(history.database, Meters(self.registry))

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"sandherd_{name}", labels) or 0.0


def at_work(script: Any) -> list[Any]:
    """The events of an agent's turn: a model call, a tool call that is reported twice, and the cost."""
    make_event = script.agent
    return [
        make_event("agent.started", "sbx-1", timestamp=script.clock, sdk="claude", task="t", task_description_length=1),
        make_event("agent.model_call_completed", "sbx-1", call_id="m1", duration_ms=1500),
        make_event("agent.tool_use", "sbx-1", tool="Bash", tool_use_id="c1"),
        make_event("agent.tool_completed", "sbx-1", tool="Bash", tool_use_id="c1", duration_ms=250),
        make_event("agent.tool_result", "sbx-1", tool_use_id="c1", result="ok"),
        make_event("agent.tool_use", "sbx-1", tool="Bash", tool_use_id="c2"),
        make_event("agent.tool_result", "sbx-1", tool_use_id="c2", result="no", is_error=True),
        make_event("agent.usage", "sbx-1", input_tokens=7, output_tokens=5, cache_read_tokens=3, cost_micro_usd=2400),
        make_event("agent.turn_completed", "sbx-1", duration_ms=9000),
    ]


async def test_stored_event_is_counted_once(history: Any, script: Any) -> None:
    """An event that is repeated in one batch and in a later one counts once, with its cost, tokens and calls."""
    counted, events = Counted(history), at_work(script)
    await history.deliver([*events, *events[:4]])
    await history.deliver(events)
    assert counted("ingest_stored_total", type="agent.tool_use") == 2
    assert counted("ingest_stored_total", type="agent.usage") == 1
    assert (counted("ingest_duplicates_total"), counted("ingest_received_total")) == (4 + 9, 9 + 4 + 9)
    assert [counted("tokens_total", kind=kind) for kind in ("input", "output", "cache_read", "cache_write")] == [
        *(7, 5, 3, 0)
    ]
    assert counted("cost_micro_usd_total") == 2400
    assert (counted("model_call_seconds_count"), counted("model_call_seconds_sum")) == (1, 1.5)
    assert (counted("turn_seconds_count"), counted("turn_seconds_sum")) == (1, 9)
    assert counted("tool_call_seconds_count") == 2
    # The first one states its duration; that of the second is the time between its events, a second.
    assert counted("tool_call_seconds_sum") == 1.25


async def test_gaps_are_exported_until_they_are_filled(history: Any, script: Any, world: Any) -> None:
    """The gauge is the number of missing sequence numbers, and 0 once they have come."""
    first, missing, last = script.messages("sbx-1", 3)
    await history.deliver([first, last])
    service = world.service()
    measures = IngestGauges(service, history.database)
    await measures.measure_gaps()
    assert service.registry.get_sample_value("sandherd_ingest_gaps") == 1
    await history.deliver([missing])
    await measures.measure_gaps()
    assert service.registry.get_sample_value("sandherd_ingest_gaps") == 0


async def test_age_of_the_oldest_pending_event_is_known(world: Any, script: Any) -> None:
    """The age is that of the first pending event by the broker's time, and 0 if none is pending."""
    bus = await world.bus(Principal.EVENT_INGEST)
    assert await oldest_age(bus, datetime.now(UTC)) == 0
    before = datetime.now(UTC)
    first, second = script.messages("sbx-1", 2)
    await world.emit([first])
    between = datetime.now(UTC)
    await world.emit([second])
    age = await oldest_age(bus, between + timedelta(seconds=60))
    assert 60 <= age <= 60 + (between - before).total_seconds() + 1
