"""Values of metrics: the number of pull requests by state, and the remaining requests to forges. Pure."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from urllib.parse import urlsplit

from sandherd.contracts.states import BranchState
from spawner.forges.rate_limits import RateLimit
from spawner.pull_requests.pull_request_options import PollIntervals
from spawner.repositories.branch_record import BranchRecord

STATES = ("open", "queued", "stuck", "refused")


def counts_of(records: Iterable[BranchRecord], now: datetime, pace: PollIntervals) -> Mapping[str, int]:
    """The number of open pull requests in each state."""
    counts = Counter(state_of(record, now, pace) for record in records)
    return {state: counts[state] for state in STATES}


def state_of(record: BranchRecord, now: datetime, pace: PollIntervals) -> str:
    """The state of the branch's pull request; empty if none is open, or if the branch is not live and so not polled."""
    pull = record.pull
    if pull is None or not pull.is_open or record.state is not BranchState.LIVE:
        return ""
    if pull.queued_at is not None:
        return "stuck" if pull.is_stuck(now, pace.queued) else "queued"
    return "refused" if record.commit in pull.refused.values() else "open"


def requests_remaining(limits: Mapping[tuple[str, str], RateLimit]) -> Mapping[str, int]:
    """The remaining requests of each host, by its label. It is the lowest number of the host's accounts.

    `limits`: the rate limits by the host's URL and the account. Those that no response has reported are left out.
    """
    lowest: dict[str, int] = {}
    for (url, _account), limit in limits.items():
        if limit.remaining is not None:
            host = _label_of(url)
            lowest[host] = min(limit.remaining, lowest.get(host, limit.remaining))
    return lowest


def _label_of(url: str) -> str:
    """The host of a forge as a label, with dashes in place of dots and colons."""
    return re.sub(r"[^a-z0-9-]", "-", urlsplit(url).netloc.lower())[:63]
