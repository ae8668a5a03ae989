"""Rate limits of one account of a forge: their state, when a request may be sent, and the pace of writes.

GitHub's secondary limits require that each installation or token sends writes one after the other, a second apart.
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
_AT_ONCE: Final = 8
"""Maximum concurrent requests of one account. GitHub permits 100, for all programs with this account."""


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
        """The delay in seconds until the next request may be sent; 0 if it may be now."""
        ends = [self.blocked_until] if self.blocked_until else []
        if self.remaining == 0 and self.resets_at:
            ends.append(self.resets_at)
        return max([0.0, *((end - now).total_seconds() for end in ends)])

    def after(self, headers: Mapping[str, str], now: datetime) -> "RateLimit":
        """The limits after a response with these headers, whose names are in lower case."""
        if headers.get("x-ratelimit-resource", "core") != "core":
            return self  # GraphQL and search have limits of their own
        remaining, resets_at = _number(header(headers, "remaining")), reset_time(headers, now)
        if remaining is None or resets_at is None:
            return self
        return replace(self, remaining=remaining, limit=_number(header(headers, "limit")), resets_at=resets_at)

    def blocked(self, seconds: float, now: datetime) -> "RateLimit":
        """The limits after a response that requires a delay."""
        return replace(self, blocked_until=now + timedelta(seconds=seconds))


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 9 else None


def _now() -> datetime:
    return datetime.now(UTC)


class ForgeAccount:
    """One token or installation: its limits, and the order of its requests."""

    def __init__(
        self, clock: Callable[[], datetime] = _now, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self.limit = RateLimit()
        self.clock = clock
        self._sleep = sleep
        self._writer = asyncio.Lock()
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._written_at: datetime | None = None

    @asynccontextmanager
    async def request(self, *, write: bool) -> AsyncIterator[None]:
        """Send a request in this block. Raises `ForgeError` at once if a limit does not permit it now."""
        if write:
            async with self._writer:
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
            wait = self.limit.wait_seconds(self.clock())
            if wait > 0:
                raise ForgeError(ForgeFault.UNAVAILABLE, "the forge's rate limit is reached", retry_after=wait)
            yield

    def _write_delay(self) -> float:
        if self._written_at is None:
            return 0.0
        passed = (self.clock() - self._written_at).total_seconds()
        return min(max(WRITE_INTERVAL - passed, 0.0), WRITE_INTERVAL)
