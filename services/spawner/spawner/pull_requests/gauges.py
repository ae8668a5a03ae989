"""How many pull requests are in which state, for metrics. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime

from spawner.pull_requests.terms import Pace
from spawner.repositories.record import BranchRecord

STATES = ("open", "queued", "stuck", "refused")


def counts_of(records: Iterable[BranchRecord], now: datetime, pace: Pace) -> Mapping[str, int]:
    """The open pull requests by state; each of them is counted once."""
    found = Counter(state_of(record, now, pace) for record in records)
    return {state: found[state] for state in STATES}


def state_of(record: BranchRecord, now: datetime, pace: Pace) -> str:
    """Its state; empty without an open pull request."""
    pull = record.pull
    if pull is None or not pull.is_open:
        return ""
    if pull.queued_at is not None:
        return "stuck" if pull.stuck_since(now, pace.queued) else "queued"
    return "refused" if record.commit in pull.refused.values() else "open"
