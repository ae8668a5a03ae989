"""What agents say of themselves is measured as far as it can be believed: no lie of one is to another's cost."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from event_ingest.agents import LONGEST, NAME, Agents
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events.agent import AgentStarted, AgentTurnCompleted, AgentUsage
from sandherd.contracts.events.tools import AgentModelCallCompleted, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.telemetry import spans, traces
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.traceparents import new_traceparent

NOW = datetime(2026, 11, 21, tzinfo=UTC)
WORD = "x" * 200_000
"""As long as an event lets a word be."""


class Told:
    """Agents with a registry to look into, and the spans that they tell."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.registry, self.spans = CollectorRegistry(), list[tuple[datetime, datetime, Any]]()
        self.agents = Agents(Meters(self.registry))
        monkeypatch.setattr(traces, "is_exported", lambda: True)
        monkeypatch.setattr(traces, "record", lambda _row, _trace, *told: self.spans.append(told))

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"sandherd_{name}", labels) or 0.0


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    return Told(monkeypatch)


def said(data: Any, sandbox: str = "sbx-1", at: datetime = NOW) -> Envelope[Any]:
    source = f"/sandherd/sandbox/{sandbox}"
    return wrap(
        data, data.type, source=source, sequence=1, project="p", subject=sandbox, time=at, traceparent=new_traceparent()
    )


@pytest.mark.parametrize("duration", [3e12, 1e16, 1e300])
def test_a_call_that_is_said_to_have_taken_for_ever_costs_nobody_else(told: Told, duration: float) -> None:
    """No date can be made of it, or one that no span may have; what others have used is counted all the same."""
    told.agents.take(
        [
            said(AgentModelCallCompleted(call_id="m", duration_ms=duration)),
            said(AgentToolCompleted(tool="Bash", tool_use_id="c", duration_ms=duration)),
            said(AgentTurnCompleted(duration_ms=duration)),
            said(AgentUsage(input_tokens=7, cost_micro_usd=2400), "sbx-2"),
        ]
    )
    assert (told("tokens_total", kind="input"), told("cost_micro_usd_total")) == (7, 2400)
    assert {told(f"{kind}_seconds_sum") for kind in ("model_call", "tool_call", "turn")} == {LONGEST}
    assert [(begun, ended) for begun, ended, _ in told.spans] == [(NOW - timedelta(seconds=LONGEST), NOW)] * 2


def test_a_call_between_two_centuries_is_no_longer_than_any(told: Told) -> None:
    """The times of both are the agent's own words, too."""
    late = datetime(2199, 1, 1, tzinfo=UTC)
    told.agents.take(
        [
            said(AgentToolUse(tool="Bash", tool_use_id="c"), at=datetime(2000, 1, 1, tzinfo=UTC)),
            said(AgentToolResult(tool_use_id="c", result="ok"), at=late),
        ]
    )
    assert told("tool_call_seconds_sum") == LONGEST
    assert [begun for begun, _, _ in told.spans] == [late - timedelta(seconds=LONGEST)]


def test_long_words_are_remembered_in_part(told: Told) -> None:
    """20,000 calls are remembered, and an event may be 256 KiB: whole, they would be gigabytes."""
    told.agents.take(
        [
            said(AgentStarted(timestamp=NOW, sdk=WORD, model=WORD, task="t", task_description_length=1)),
            said(AgentUsage(model=WORD)),
            said(AgentToolUse(tool=WORD, tool_use_id=WORD)),
            said(AgentToolUse(tool="Bash", tool_use_id="c")),
        ]
    )
    kept = repr([told.agents._calls._known, told.agents._names, told.agents._models])
    assert "Bash" in kept
    assert len(kept) < 10 * NAME
    told.agents.take([said(AgentToolResult(tool_use_id=WORD, result="ok"))])
    assert told("tool_call_seconds_count") == 1, "by what is remembered of it, a call is still known"


def test_spans_hold_a_part_of_long_words() -> None:
    """In names and in attributes: 2,048 of them may wait for a collector."""
    values: spans.Values = {spans.TOOL_NAME: WORD, spans.TOOL_CALL: WORD, spans.ERROR_TYPE: None}
    assert len(spans.TOOL.named(values)) < spans.LONGEST + 20
    assert {len(str(value)) for value in spans.TOOL.attributes_of(values).values()} == {spans.LONGEST}
