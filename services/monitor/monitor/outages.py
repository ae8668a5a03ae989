"""Outages: a network, a server or the model's provider does not respond, which is not a fault of the agent. Pure.

An outage is shown and counted, and no agent is steered because of it: rules ignore calls that an outage has prevented.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final
from uuid import UUID

from monitor.facts import EndedCall, ObservedEvent
from monitor.seen_values import MAX_EVIDENCE_IDS
from sandherd.contracts.events.conversation import AgentSystemMessage

OUTAGE: Final = "outage"
"""The name of an outage in findings, and as the outcome of a call."""
OVER_AFTER: Final = 10
"""Number of calls in a row without an outage after which the outage is over."""
_RETRY_CAUSE: Final = "api_retry"
"""The subtype by which Claude publishes that a request to its provider has failed and is repeated."""


@dataclass(frozen=True, slots=True)
class Outage:
    """Calls that an outage has prevented, and requests to the provider that were repeated."""

    count: int
    since: datetime
    evidence: tuple[UUID, ...]
    """Ids of the last events that show it."""
    others: int = 0
    """Number of calls that no outage has prevented, since the last one that an outage has prevented."""

    @property
    def summary(self) -> str:
        """A description in one sentence."""
        return f"a network, a server or the model's provider did not respond, {self.count} times"


def after_event(outage: Outage | None, event: ObservedEvent, call: EndedCall | None) -> Outage | None:
    """The outage after an event of the worker, which ends `call`; None if there is none, or it is over."""
    if (call is not None and call.outcome == OUTAGE) or _is_repeated_request(event):
        ids = () if event.id is None else (event.id,)
        if outage is None:
            return Outage(1, event.at, ids)
        return replace(outage, count=outage.count + 1, evidence=(*outage.evidence, *ids)[-MAX_EVIDENCE_IDS:], others=0)
    if outage is None or call is None:
        return outage
    return replace(outage, others=outage.others + 1) if outage.others + 1 < OVER_AFTER else None


def _is_repeated_request(event: ObservedEvent) -> bool:
    return isinstance(event.data, AgentSystemMessage) and event.data.metadata.get("subtype") == _RETRY_CAUSE
