"""Metrics and spans of agents' usage and waiting times, from their stored events: each event counts once."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any, Final, Generic, TypeVar

from event_ingest.canonical_events import ParsedEvent
from sandherd.contracts.events.agent import AgentStarted, AgentTurnCompleted, AgentUsage
from sandherd.contracts.events.tools import AgentModelCallCompleted, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.telemetry import spans, traces
from sandherd.telemetry.meters import Meters
from sandherd.telemetry.spans import SpanRow

MAX_REMEMBERED: Final = 20_000
"""Maximum number of calls in memory, and of agents. If there are more, the oldest are dropped."""
MAX_SPANS_PER_SECOND: Final = 100.0
"""Maximum number of spans of calls that are exported per second. More of them would delay the storing of events."""
MAX_DURATION: Final = 30 * 86_400.0
"""Maximum duration of a call or turn, in seconds: an agent may report one that is too long to compute the start."""
MAX_NAME_LENGTH: Final = 200
"""Maximum characters of the name of a tool, call, model or SDK in memory: an agent may send a very long name."""
_TURN_METRIC: Final = "sandherd_turn_seconds"
_MODEL_METRIC: Final = "sandherd_model_call_seconds"
_TOOL_METRIC: Final = "sandherd_tool_call_seconds"
_TOKEN_KINDS: Final = ("input", "output", "cache_read", "cache_write")
_PROVIDERS: Final = {"claude": "anthropic", "gpt": "openai", "gemini": "gcp.gemini", "mistral": "mistral_ai"}
"""The name that OpenTelemetry's conventions define for a provider, by the beginning of a model's name."""
_NO_START: Final = ("", datetime.min.replace(tzinfo=UTC))
"""Stands for the start of a call that was not recorded."""

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")
Seconds = float


class RecentEntries(OrderedDict[KeyT, ValueT], Generic[KeyT, ValueT]):
    """A mapping limited to the newest entries."""

    def add(self, key: KeyT, value: ValueT) -> None:
        """Add an entry, and drop the oldest if there are too many."""
        self[key] = value
        self.trim()

    def trim(self) -> None:
        """Drop the oldest entries if there are too many."""
        while len(self) > MAX_REMEMBERED:
            self.popitem(last=False)


class SpanRateLimit:
    """Limits the exported spans to `rate` per second, and reads the clock once for each batch, not for each event.

    After a time with fewer spans, up to `rate` of them may be exported at once.
    """

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._available = rate
        self._updated_at = time.monotonic()

    def refill(self) -> int:
        """Add the spans that became available since the last call. Returns how many may be exported until the next."""
        now = time.monotonic()
        self._available = min(self._rate, self._available + (now - self._updated_at) * self._rate)
        self._updated_at = now
        return int(self._available)

    def take(self, count: int) -> None:
        """Subtract the number of exported spans."""
        self._available -= count


class ToolCallTimes:
    """The tool and the start of each call. An ended call stays in memory: a harness may report an end twice."""

    def __init__(self) -> None:
        self._calls_by_key: dict[tuple[str, str], tuple[str, datetime] | None] = {}
        """By source and id of the call: the tool and the start of the call; None after the end was recorded."""

    def record_start(self, source: str, call: str, tool: str, at: datetime) -> None:
        """Record the start of a call, unless its end was recorded before."""
        self._calls_by_key.setdefault((source, call), (tool, at))

    def record_end(
        self, source: str, call: str, at: datetime, duration: Seconds | None
    ) -> tuple[str | None, Seconds] | None:
        """Record the end of a call, with its duration if the agent has reported it. Returns its tool and duration.

        The tool is None if no start was recorded. Returns None without start and duration, or at a repeated end.
        """
        key = source, call
        start = self._calls_by_key.get(key, _NO_START)
        if start is None:
            return None
        if start is not _NO_START:
            self._calls_by_key[key] = None
            return start[0], min((at - start[1]).total_seconds(), MAX_DURATION) if duration is None else duration
        if duration is None:
            return None
        self._calls_by_key[key] = None
        return None, duration

    def trim(self) -> None:
        """Drop the oldest calls if there are too many."""
        for key in list(islice(self._calls_by_key, max(0, len(self._calls_by_key) - MAX_REMEMBERED))):
            del self._calls_by_key[key]


class AgentMetrics:
    """Measures the new events of the types in `event_rows.MEASURED`."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._calls = ToolCallTimes()
        self._sdk_names: RecentEntries[str, str] = RecentEntries()
        self._model_names: RecentEntries[str, str] = RecentEntries()
        self._span_limit = SpanRateLimit(MAX_SPANS_PER_SECOND)
        self._spans_left = self._skipped_spans = 0
        """The number of spans that the current batch may still export, and of those that it has not exported."""
        self._durations: dict[str, list[Seconds]] = {name: [] for name in (_TURN_METRIC, _MODEL_METRIC, _TOOL_METRIC)}
        """By histogram: the durations in the current batch."""
        # Sums of the current batch, for the counters.
        self._tokens: Counter[str] = Counter()
        self._cost = 0
        # A mapping is faster than `match`: this runs for most of a herd's events.
        self._by_type: dict[str, Callable[[ParsedEvent, Any], None]] = {
            AgentStarted.type: self._record_start,
            AgentUsage.type: self._record_usage,
            AgentTurnCompleted.type: self._record_turn,
            AgentModelCallCompleted.type: self._record_model_call,
            AgentToolUse.type: self._record_tool_use,
            AgentToolCompleted.type: self._record_tool_completion,
            AgentToolResult.type: self._record_tool_result,
        }

    def record(self, events: Iterable[ParsedEvent]) -> None:
        """Record these events, and export spans of their calls if there is an exporter."""
        max_spans = self._span_limit.refill() if traces.is_exported() else 0
        self._spans_left, self._skipped_spans = max_spans, 0
        record_by_type = self._by_type
        for event in events:
            record_by_type[event.type](event, event.data)
        self._span_limit.take(max_spans - self._spans_left)
        self._calls.trim()
        self._update_meters()

    def _update_meters(self) -> None:
        """Add the durations, tokens and cost of the batch to the meters."""
        for name, durations in self._durations.items():
            if durations:
                self._meters.observe_all(name, durations)
                durations.clear()
        for kind, amount in self._tokens.items():
            self._meters.count("sandherd_tokens_total", amount, kind=kind)
        if self._tokens:
            self._meters.count("sandherd_cost_micro_usd_total", self._cost)
        self._tokens.clear()
        self._cost = 0
        if self._skipped_spans and traces.is_exported():
            self._meters.count("sandherd_spans_spared_total", self._skipped_spans)

    def _record_start(self, event: ParsedEvent, started: AgentStarted) -> None:
        self._sdk_names.add(event.source, _truncated(started.sdk))
        if started.model:
            self._model_names.add(event.source, _truncated(started.model))

    def _record_usage(self, event: ParsedEvent, usage: AgentUsage) -> None:
        for kind in _TOKEN_KINDS:
            self._tokens[kind] += getattr(usage, f"{kind}_tokens")
        self._cost += usage.cost_micro_usd
        if usage.model:
            self._model_names.add(event.source, _truncated(usage.model))

    def _record_turn(self, _event: ParsedEvent, turn: AgentTurnCompleted) -> None:
        if turn.duration_ms is not None:
            self._durations[_TURN_METRIC].append(_seconds(turn.duration_ms))

    def _record_model_call(self, event: ParsedEvent, call: AgentModelCallCompleted) -> None:
        if call.duration_ms is None:
            return
        duration = _seconds(call.duration_ms)
        self._durations[_MODEL_METRIC].append(duration)
        if self._spans_left <= 0:
            self._skipped_spans += 1
            return
        self._spans_left -= 1
        model = self._model_names.get(event.source)
        values = {spans.MODEL: model, spans.PROVIDER: _provider(model), spans.OPERATION: "chat"}
        self._export_span(spans.CHAT, event, duration, values)

    def _record_tool_use(self, event: ParsedEvent, use: AgentToolUse) -> None:
        self._calls.record_start(event.source, _truncated(use.tool_use_id), _truncated(use.tool), event.time)

    def _record_tool_completion(self, event: ParsedEvent, completed: AgentToolCompleted) -> None:
        if completed.tool_use_id is not None:
            duration = None if completed.duration_ms is None else _seconds(completed.duration_ms)
            call = _truncated(completed.tool_use_id)
            end = self._calls.record_end(event.source, call, event.time, duration)
            if end is not None:
                self._record_tool_call(event, call, _truncated(completed.tool) or end[0], end[1], failed=False)

    def _record_tool_result(self, event: ParsedEvent, result: AgentToolResult) -> None:
        call = _truncated(result.tool_use_id)
        end = self._calls.record_end(event.source, call, event.time, None)
        if end is not None:
            self._record_tool_call(event, call, *end, failed=result.is_error)

    def _record_tool_call(
        self, event: ParsedEvent, call: str, tool: str | None, duration: Seconds, *, failed: bool
    ) -> None:
        self._durations[_TOOL_METRIC].append(duration if duration > 0 else 0.0)
        if self._spans_left <= 0:
            self._skipped_spans += 1
            return
        self._spans_left -= 1
        values: dict[spans.Attribute, spans.Value | None] = {
            spans.OPERATION: "execute_tool",
            spans.TOOL_NAME: tool,
            spans.TOOL_CALL: call,
            spans.ERROR_TYPE: "tool_error" if failed else None,
        }
        self._export_span(spans.TOOL, event, duration, values)

    def _export_span(self, row: SpanRow, event: ParsedEvent, duration: Seconds, values: spans.Values) -> None:
        if event.traceparent is None:
            return  # the event belongs to no trace
        entity = {
            spans.PROJECT: event.project,
            spans.SANDBOX_ID: event.subject,
            spans.AGENT_NAME: self._sdk_names.get(event.source),
        }
        start = event.time - timedelta(seconds=max(0.0, duration))
        traces.record(row, event.traceparent, start, event.time, {**entity, **values})


def _seconds(milliseconds: float) -> Seconds:
    """Converts milliseconds that an agent has reported to seconds, at most `MAX_DURATION`."""
    return min(milliseconds / 1000, MAX_DURATION)


def _truncated(name: str) -> str:
    return name if len(name) <= MAX_NAME_LENGTH else name[:MAX_NAME_LENGTH]


def _provider(model: str | None) -> str | None:
    providers = (provider for name, provider in _PROVIDERS.items() if model and model.startswith(name))
    return next(providers, None)
