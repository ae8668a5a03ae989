"""What agents use and how long they wait, measured from what is stored of them: each event counts once."""

from collections import OrderedDict
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final

from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events.agent import AgentTurnCompleted, AgentUsage
from sandherd.contracts.events.tools import AgentModelCallCompleted, AgentToolCompleted, AgentToolResult, AgentToolUse
from sandherd.telemetry.meters import Meters

MOST_CALLS: Final = 20_000
"""So many calls are remembered, for those whose end does not say when they began; of more the oldest are forgotten."""
_TOKENS: Final = ("input", "output", "cache_read", "cache_write")

Key = tuple[str, str]


class Calls:
    """Tool calls: of each when it began, or that its end was told. A harness may report one end twice."""

    def __init__(self) -> None:
        self._begun: OrderedDict[Key, datetime | None] = OrderedDict()

    def opened(self, source: str, call: str, at: datetime) -> None:
        """It has begun."""
        self._begun.setdefault((source, call), at)
        while len(self._begun) > MOST_CALLS:
            self._begun.popitem(last=False)

    def closed(self, source: str, call: str, at: datetime, duration_ms: float | None) -> float | None:
        """How many seconds it took; None if that is not known, or was told before."""
        begun = self._begun.get((source, call), at)
        if begun is None:
            return None
        known = (source, call) in self._begun
        self._begun[source, call] = None
        if duration_ms is not None:
            return duration_ms / 1000
        return max(0.0, (at - begun).total_seconds()) if known else None


class Agents:
    """Takes in what is new of `rows.TOLD`."""

    def __init__(self, meters: Meters) -> None:
        self._meters = meters
        self._calls = Calls()

    def take(self, events: Iterable[Envelope[Any]]) -> None:
        """Measure these."""
        for event in events:
            match event.data:
                case AgentUsage() as usage:
                    self._used(usage)
                case AgentTurnCompleted(duration_ms=took) if took is not None:
                    self._meters.observe("sandherd_turn_seconds", took / 1000)
                case AgentModelCallCompleted(duration_ms=took) if took is not None:
                    self._meters.observe("sandherd_model_call_seconds", took / 1000)
                case AgentToolUse() as use:
                    self._calls.opened(event.source, use.tool_use_id, event.time)
                case AgentToolCompleted(tool_use_id=str(call), duration_ms=took):
                    self._called(event, call, took)
                case AgentToolResult(tool_use_id=call):
                    self._called(event, call, None)
                case _:
                    pass

    def _used(self, usage: AgentUsage) -> None:
        for kind in _TOKENS:
            amount = getattr(usage, f"{kind}_tokens")
            if amount:
                self._meters.count("sandherd_tokens_total", amount, kind=kind)
        self._meters.count("sandherd_cost_micro_usd_total", usage.cost_micro_usd)

    def _called(self, event: Envelope[Any], call: str, duration_ms: float | None) -> None:
        took = self._calls.closed(event.source, call, event.time, duration_ms)
        if took is not None:
            self._meters.observe("sandherd_tool_call_seconds", took)
