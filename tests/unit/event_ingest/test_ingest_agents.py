"""Metrics of what agents report about themselves: implausible reports of one agent do not affect those of others."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from event_ingest.agent_metrics import MAX_DURATION, MAX_NAME_LENGTH, MAX_REMEMBERED, MAX_SPANS_PER_SECOND, AgentMetrics
from event_ingest.event_rows import MEASURED
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.agent import AgentStarted, AgentTurnCompleted, AgentUsage
from sandherd.contracts.events.tools import AgentModelCallCompleted, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.telemetry import spans, traces
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.traceparents import new_traceparent

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WORD = "x" * 200_000
"""The maximum length of a name in an event."""


class MetricsAndSpans:
    """The metrics in a registry, and the spans that are exported."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registry, self.spans = CollectorRegistry(), list[tuple[datetime, datetime, Any]]()
        self.agents = AgentMetrics(Meters(self.registry))
        monkeypatch.setattr(traces, "is_exported", lambda: True)
        monkeypatch.setattr(traces, "record", lambda _row, _trace, *exported: self.spans.append(exported))

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"sandherd_{name}", labels) or 0.0


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> MetricsAndSpans:
    return MetricsAndSpans(monkeypatch)


def event_of(data: Any, sandbox: str = "sbx-1", at: datetime = NOW) -> Envelope[Any]:
    source = f"/sandherd/sandbox/{sandbox}"
    return wrap(
        data, data.type, source=source, sequence=1, project="p", subject=sandbox, time=at, traceparent=new_traceparent()
    )


def test_measured_events_are_those_that_have_a_handler(exported: MetricsAndSpans) -> None:
    """Their classes set `measured`; a class that sets it without a handler would stop event-ingest."""
    assert exported.agents._by_type.keys() == MEASURED


@pytest.mark.parametrize("duration", [3e12, 1e16, 1e300])
def test_call_with_impossible_duration_affects_no_other(exported: MetricsAndSpans, duration: float) -> None:
    """A call with a duration that no date or span can have is skipped. Other usage is still counted."""
    exported.agents.record(
        [
            event_of(AgentModelCallCompleted(call_id="m", duration_ms=duration)),
            event_of(AgentToolCompleted(tool="Bash", tool_use_id="c", duration_ms=duration)),
            event_of(AgentTurnCompleted(duration_ms=duration)),
            event_of(AgentUsage(input_tokens=7, cost_micro_usd=2400), "sbx-2"),
        ]
    )
    assert (exported("tokens_total", kind="input"), exported("cost_micro_usd_total")) == (7, 2400)
    assert {exported(f"{kind}_seconds_sum") for kind in ("model_call", "tool_call", "turn")} == {MAX_DURATION}
    assert [(begun, ended) for begun, ended, _ in exported.spans] == [(NOW - timedelta(seconds=MAX_DURATION), NOW)] * 2


def test_call_between_two_centuries_is_limited(exported: MetricsAndSpans) -> None:
    """The duration is limited, as the agent sets the times of both events."""
    late = datetime(2199, 1, 1, tzinfo=UTC)
    exported.agents.record(
        [
            event_of(AgentToolUse(tool="Bash", tool_use_id="c"), at=datetime(2000, 1, 1, tzinfo=UTC)),
            event_of(AgentToolResult(tool_use_id="c", result="ok"), at=late),
        ]
    )
    assert exported("tool_call_seconds_sum") == MAX_DURATION
    assert [begun for begun, _, _ in exported.spans] == [late - timedelta(seconds=MAX_DURATION)]


def test_long_texts_are_remembered_in_part(exported: MetricsAndSpans) -> None:
    """Names are truncated in memory: of 20,000 calls with events of 256 KiB, they would have gigabytes."""
    exported.agents.record(
        [
            event_of(AgentStarted(timestamp=NOW, sdk=WORD, model=WORD, task="t", task_description_length=1)),
            event_of(AgentUsage(model=WORD)),
            event_of(AgentToolUse(tool=WORD, tool_use_id=WORD)),
            event_of(AgentToolUse(tool="Bash", tool_use_id="c")),
        ]
    )
    stored = repr([exported.agents._calls._calls_by_key, exported.agents._sdk_names, exported.agents._model_names])
    assert "Bash" in stored
    assert len(stored) < 10 * MAX_NAME_LENGTH
    exported.agents.record([event_of(AgentToolResult(tool_use_id=WORD, result="ok"))])
    assert exported("tool_call_seconds_count") == 1, "by what is remembered of it, a call is still known"


def test_long_texts_are_truncated_in_spans() -> None:
    """Names and attributes of spans are truncated: 2,048 spans may wait for a collector."""
    values: spans.Values = {spans.TOOL_NAME: WORD, spans.TOOL_CALL: WORD, spans.ERROR_TYPE: None}
    assert len(spans.TOOL.named(values)) < spans.MAX_VALUE_LENGTH + 20
    assert {len(str(value)) for value in spans.TOOL.attributes_of(values).values()} == {spans.MAX_VALUE_LENGTH}


def calls(count: int, first: int = 0) -> list[Envelope[Any]]:
    """Calls of a tool, each with its result a second later."""
    found = []
    for number in range(first, first + count):
        found.append(event_of(AgentToolUse(tool="Bash", tool_use_id=f"c-{number}", input={})))
        result = AgentToolResult(tool_use_id=f"c-{number}", result="")
        found.append(event_of(result, at=NOW + timedelta(seconds=1)))
    return found


def test_every_call_is_counted_and_spans_are_limited(exported: MetricsAndSpans) -> None:
    """Spans over the budget of a second are counted as spared; a batch has what earlier ones left of it."""
    limit = int(MAX_SPANS_PER_SECOND)
    exported.agents.record(calls(limit // 2))
    assert (len(exported.spans), exported("spans_spared_total")) == (limit // 2, 0)
    exported.agents.record(calls(5 * limit, first=limit))
    total = limit // 2 + 5 * limit
    assert (exported("tool_call_seconds_count"), exported("tool_call_seconds_sum")) == (total, total)
    assert len(exported.spans) + exported("spans_spared_total") == total
    assert limit <= len(exported.spans) < total


def test_nothing_is_spared_without_an_exporter(exported: MetricsAndSpans, monkeypatch: pytest.MonkeyPatch) -> None:
    """No span is wanted then."""
    monkeypatch.setattr(traces, "is_exported", lambda: False)
    exported.agents.record(calls(300))
    assert (exported("tool_call_seconds_count"), exported("spans_spared_total"), exported.spans) == (300, 0, [])


def test_remembered_calls_are_limited(exported: MetricsAndSpans) -> None:
    """The oldest are dropped: their results are not measured, and those of the newest are."""
    newest = [event_of(AgentToolUse(tool="Bash", tool_use_id=f"n-{one}", input={})) for one in range(MAX_REMEMBERED)]
    exported.agents.record(calls(1)[:1])
    exported.agents.record(newest)
    exported.agents.record([event_of(AgentToolResult(tool_use_id="c-0", result=""))])
    assert exported("tool_call_seconds_count") == 0
    for name in ("n-0", f"n-{MAX_REMEMBERED - 1}"):
        exported.agents.record([event_of(AgentToolResult(tool_use_id=name, result=""))])
    assert exported("tool_call_seconds_count") == 2
