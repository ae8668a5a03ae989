"""Refuses requests of a source that sends too many, before they are decoded or queued, so that others need not wait.

A source is the subject of a request. It contains the kind of the request, the project and, if a sandbox sent it, the
sandbox, because the broker permits no other subject. To refuse a request takes a fraction of the CPU time of queueing
it. All refusals have the same text, so all waiting refusals are sent in one write.
"""

import asyncio
import time
from collections import Counter
from typing import Any, Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.rate_limit import Rate, RateLimiter
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.requests import Reply
from sandherd.telemetry import logs
from sandherd.telemetry.line_limit import LineLimit
from sandherd.telemetry.meters import Meters

SOURCE_RATE: Final = Rate(per_second=500, burst=1_000)
"""Maximum rate of requests of one kind from one sandbox, or from all clients of one project."""
PROJECT_RATE: Final = Rate(per_second=2_000, burst=4_000)
"""Maximum rate of requests of one kind from all sandboxes of a project."""
OVERLOAD_UNREAD: Final = 1_000
"""If more requests of one kind wait to be decoded, the service counts as overloaded."""
BUSY_RATE: Final = Rate(per_second=20, burst=64)
"""Maximum rate of requests from one source while the service is overloaded."""
MAX_REFUSALS: Final = 16_384
"""Maximum number of refusals that wait to be sent. Further requests are dropped, because the connection is too slow."""
_PROJECT_TOKENS: Final = 6
"""Tokens of a request's subject up to its project: prefix, version, `request`, service, verb, project."""
REFUSAL: Final = Reply[Any](
    error=Problem(
        code=Code.BUSY,
        message="too many requests of this kind of one sandbox or project, and others wait",
        remedy="retry later, and send fewer requests at a time",
        retry_after_seconds=SOURCE_RATE.burst / SOURCE_RATE.per_second,
    )
)
_log: Final = logs.get("request_intake")


class RequestIntake:
    """Admits or refuses the requests that a service receives on its connection for requests."""

    def __init__(self, meters: Meters, source: Rate = SOURCE_RATE, project: Rate = PROJECT_RATE) -> None:
        self._meters = meters
        self._sources = RateLimiter(source)
        self._projects = RateLimiter(project)
        self._while_overloaded = RateLimiter(BUSY_RATE)
        self._refused: list[str] = []
        """Reply subjects of refused requests to which the refusal is not sent yet."""
        self._counts: Counter[bytes] = Counter()
        """Refused requests that are not counted in the metrics yet, by subject."""
        self._has_refusals = asyncio.Event()
        self._log_limit = LineLimit()

    def admits(self, subject: bytes, reply: bytes, unread: int) -> bool:
        """Whether a request may be queued; otherwise it is refused. Called for each received message.

        `unread` is the number of requests of its kind that wait to be decoded.
        """
        if self._permits(subject, unread, time.monotonic()):
            return True
        self._counts[subject] += 1
        if reply and len(self._refused) < MAX_REFUSALS:
            self._refused.append(reply.decode())
        self._has_refusals.set()
        return False

    def _permits(self, subject: bytes, unread: int, now: float) -> bool:
        if unread > OVERLOAD_UNREAD and not self._while_overloaded.admits(subject, now):
            return False
        if not self._sources.admits(subject, now):
            return False
        tokens = subject.split(b".")
        return len(tokens) <= _PROJECT_TOKENS or self._projects.admits(b".".join(tokens[:_PROJECT_TOKENS]), now)

    async def run(self, bus: Bus) -> None:
        """Send the refusals and count them, until cancelled."""
        document = REFUSAL.model_dump_json(exclude_none=True).encode()
        while True:
            await self._has_refusals.wait()
            self._has_refusals.clear()
            counts, self._counts = self._counts, Counter()
            refused, self._refused = self._refused, []
            self._count(counts)
            try:
                if refused:
                    await bus.client.publish_each(refused, document)
            except BROKER_ERRORS as error:  # the requesters time out, as after any lost connection
                _log.warning("reply not sent", times=len(refused), error=repr(error))

    def _count(self, counts: Counter[bytes]) -> None:
        for subject, count in counts.items():
            _, _, _, service, verb, project, *_ = subject.decode().split(".")
            self._meters.count("sandherd_requests_total", count, request=f"{service}.{verb}", outcome=Code.BUSY.value)
            if times := self._log_limit.add(project, time.monotonic()):
                _log.warning("requests refused, too many of one source", subject=subject.decode(), times=times)
