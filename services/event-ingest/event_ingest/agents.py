"""What agents use and how long they wait, measured and told from what is stored of them: each event counts once."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.agent import AgentStarted, AgentTurnCompleted, AgentUsage
from sandherd.contracts.events.tools import AgentModelCallCompleted, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.telemetry import spans, traces
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.spans import SpanRow

MOST: Final = 20_000
"""So many calls and agents are remembered; of more the oldest are forgotten."""
MOST_SPANS: Final = 100.0
"""Spans of calls that are told in a second: more would cost the ingest what it is there for."""
LONGEST: Final = 30 * 86_400.0
"""So many seconds a call or a turn may have taken, whatever its agent says: of more no date can be made."""
NAME: Final = 200
"""So many characters are remembered of what an agent calls a tool, a call or a model: it may say hundreds of KiB."""
_TOKENS: Final = ("input", "output", "cache_read", "cache_write")
_PROVIDERS: Final = {"claude": "anthropic", "gpt": "openai", "gemini": "gcp.gemini", "mistral": "mistral_ai"}
"""By the beginning of a model's name, as the conventions of OpenTelemetry call them."""

_UNKNOWN: Final = ("", datetime.min.replace(tzinfo=UTC))

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
Seconds = float


class Recent(OrderedDict[KeyT, ValueT], Generic[KeyT, ValueT]):
    """The newest of many."""

    def keep(self, key: KeyT, value: ValueT) -> None:
        """Remember it, and forget the oldest if there are too many."""
        self[key] = value
        if len(self) > MOST:
            self.popitem(last=False)


class Budget:
    """So many a second, saved up for a second at the most."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._left = rate
        self._at = time.monotonic()

    def take(self) -> bool:
        """Whether there is one left."""
        now = time.monotonic()
        self._left = min(self._rate, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


class Calls:
    """Tool calls: of each the tool and when it began, or that its end was told. A harness may report an end twice."""

    def __init__(self) -> None:
        self._known: Recent[tuple[str, str], tuple[str, datetime] | None] = Recent()

    def opened(self, source: str, call: str, tool: str, at: datetime) -> None:
        """It has begun, unless its end came before."""
        key = source, call
        if key not in self._known:
            self._known.keep(key, (tool, at))

    def closed(self, source: str, call: str, at: datetime, took: Seconds | None) -> tuple[str | None, Seconds] | None:
        """The tool and how long it took; None if that is not known, or was told before."""
        key = source, call
        begun = self._known.get(key, _UNKNOWN)
        if begun is None:
            return None
        if begun is not _UNKNOWN:
            self._known[key] = None
            return begun[0], min((at - begun[1]).total_seconds(), LONGEST) if took is None else took
        if took is None:
            return None
        self._known.keep(key, None)
        return None, took


class Agents:
    """Takes in what is new of `rows.TOLD`."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._calls = Calls()
        self._names: Recent[str, str] = Recent()
        self._models: Recent[str, str] = Recent()
        self._budget = Budget(MOST_SPANS)
        self._told, self._spared = False, 0
        # Not `match`: this is done for most of what a herd says.
        self._by_type: dict[str, Callable[[Envelope[Any], Any], None]] = {
            AgentStarted.type: self._started,
            AgentUsage.type: self._used,
            AgentTurnCompleted.type: self._turned,
            AgentModelCallCompleted.type: self._answered,
            AgentToolUse.type: self._called,
            AgentToolCompleted.type: self._completed,
            AgentToolResult.type: self._resulted,
        }

    def take(self, events: Iterable[Envelope[Any]]) -> None:
        """Measure these, and tell their spans if somebody takes them."""
        self._told, self._spared = traces.is_exported(), 0
        for event in events:
            self._by_type[event.type](event, event.data)
        if self._spared:
            self._meters.count("sandherd_spans_spared_total", self._spared)

    def _started(self, event: Envelope[Any], started: AgentStarted) -> None:
        self._names.keep(event.source, started.sdk[:NAME])
        if started.model:
            self._models.keep(event.source, started.model[:NAME])

    def _used(self, event: Envelope[Any], usage: AgentUsage) -> None:
        for kind in _TOKENS:
            self._meters.count("sandherd_tokens_total", getattr(usage, f"{kind}_tokens"), kind=kind)
        self._meters.count("sandherd_cost_micro_usd_total", usage.cost_micro_usd)
        if usage.model:
            self._models.keep(event.source, usage.model[:NAME])

    def _turned(self, _event: Envelope[Any], turn: AgentTurnCompleted) -> None:
        if turn.duration_ms is not None:
            self._meters.observe("sandherd_turn_seconds", _seconds(turn.duration_ms))

    def _answered(self, event: Envelope[Any], answered: AgentModelCallCompleted) -> None:
        if answered.duration_ms is None:
            return
        took = _seconds(answered.duration_ms)
        self._meters.observe("sandherd_model_call_seconds", took)
        if self._may_tell():
            model = self._models.get(event.source)
            values = {spans.MODEL: model, spans.PROVIDER: _provider(model), spans.OPERATION: "chat"}
            self._tell(spans.CHAT, event, took, values)

    def _called(self, event: Envelope[Any], use: AgentToolUse) -> None:
        self._calls.opened(event.source, use.tool_use_id[:NAME], use.tool[:NAME], event.time)

    def _completed(self, event: Envelope[Any], done: AgentToolCompleted) -> None:
        if done.tool_use_id is not None:
            took = None if done.duration_ms is None else _seconds(done.duration_ms)
            self._closed(event, done.tool_use_id[:NAME], done.tool[:NAME], took, failed=False)

    def _resulted(self, event: Envelope[Any], result: AgentToolResult) -> None:
        self._closed(event, result.tool_use_id[:NAME], None, None, failed=result.is_error)

    def _closed(self, event: Envelope[Any], call: str, tool: str | None, took: Seconds | None, *, failed: bool) -> None:
        closed = self._calls.closed(event.source, call, event.time, took)
        if closed is None:
            return
        self._meters.observe("sandherd_tool_call_seconds", max(0.0, closed[1]))
        if not self._may_tell():
            return
        values: dict[spans.Attribute, spans.Value | None] = {
            spans.OPERATION: "execute_tool",
            spans.TOOL_NAME: tool or closed[0],
            spans.TOOL_CALL: call,
            spans.ERROR_TYPE: "tool_error" if failed else None,
        }
        self._tell(spans.TOOL, event, closed[1], values)

    def _may_tell(self) -> bool:
        """Whether somebody takes spans, and one is left; if not, that is counted."""
        if not self._told:
            return False
        if self._budget.take():
            return True
        self._spared += 1
        return False

    def _tell(self, row: SpanRow, event: Envelope[Any], took: Seconds, values: spans.Values) -> None:
        if event.traceparent is None:
            return  # it is part of nothing
        whose = {
            spans.PROJECT: event.project,
            spans.SANDBOX_ID: event.subject,
            spans.AGENT_NAME: self._names.get(event.source),
        }
        begun = event.time - timedelta(seconds=max(0.0, took))
        traces.record(row, event.traceparent, begun, event.time, {**whose, **values})


def _seconds(said: float) -> Seconds:
    """Of milliseconds that an agent says."""
    return min(said / 1000, LONGEST)


def _provider(model: str | None) -> str | None:
    found = (provider for name, provider in _PROVIDERS.items() if model and model.startswith(name))
    return next(found, None)
