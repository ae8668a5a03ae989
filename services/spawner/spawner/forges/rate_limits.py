"""The rate limits of one account of a forge: their state, when a request may be sent, and the interval of writes.

GitHub's secondary limits require that the writes of an account are sequential, with a second between them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from spawner.forges.faults import ForgeError, ForgeFault, header, reset_time

WRITE_INTERVAL: Final = 1.0
"""Seconds between the end of a write and the beginning of the next one."""
_MAX_CONCURRENT: Final = 8
"""Maximum concurrent requests of one account. GitHub permits 100 to all programs that use the account."""


@dataclass(frozen=True)
class RateLimit:
    """The limits of one account, as of its last response."""

    remaining: int | None = None
    """How many requests are permitted until `resets_at`; None if the forge has not reported it."""
    limit: int | None = None
    resets_at: datetime | None = None
    blocked_until: datetime | None = None
    """When the forge accepts requests again, after a response that required a delay."""

    def wait_seconds(self, now: datetime) -> float:
        """The delay in seconds until the next request may be sent; 0 if it may be sent now."""
        times = [self.blocked_until] if self.blocked_until else []
        if self.remaining == 0 and self.resets_at:
            times.append(self.resets_at)
        return max([0.0, *((end - now).total_seconds() for end in times)])

    def after(self, headers: Mapping[str, str], now: datetime) -> "RateLimit":
        """The limits after a response with these headers, whose names are in lower case."""
        if headers.get("x-ratelimit-resource", "core") != "core":
            return self  # GraphQL and search have separate limits
        remaining, resets_at = _count(header(headers, "remaining")), reset_time(headers, now)
        if remaining is None or resets_at is None:
            return self
        return replace(self, remaining=remaining, limit=_count(header(headers, "limit")), resets_at=resets_at)

    def blocked(self, seconds: float, now: datetime) -> "RateLimit":
        """The limits after a response that requires a delay."""
        return replace(self, blocked_until=now + timedelta(seconds=seconds))


def _count(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def _now() -> datetime:
    return datetime.now(UTC)


class ForgeAccount:
    """A stored token, or an installation of a GitHub App: its limits, and the order of its requests."""

    def __init__(
        self, clock: Callable[[], datetime] = _now, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.limit = RateLimit()
        self.clock = clock
        self._sleep = sleep
        self._write_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._written_at: datetime | None = None

    @asynccontextmanager
    async def request(self, *, write: bool) -> AsyncIterator[None]:
        """A request is sent in this block. Raises `ForgeError` without waiting if a limit does not permit it now."""
        if write:
            async with self._write_lock:
                await self._sleep(self._write_delay())
                try:
                    async with self._slot():
                        yield
                finally:
                    self._written_at = self.clock()
        else:
            async with self._slot():
                yield

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        async with self._slots:
            delay = self.limit.wait_seconds(self.clock())
            if delay > 0:
                raise ForgeError(ForgeFault.UNAVAILABLE, "the forge's rate limit is reached", retry_after=delay)
            yield

    def _write_delay(self) -> float:
        if self._written_at is None:
            return 0.0
        elapsed = (self.clock() - self._written_at).total_seconds()
        return min(max(WRITE_INTERVAL - elapsed, 0.0), WRITE_INTERVAL)
