"""Waiting on a connection that may be lost: whoever waits is told at once, and not when its time is up."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class LostError(Exception):
    """The connection was lost while something was waited for that came over it."""


class Waiting:
    """Those who wait for an answer over one connection. It costs them no task of their own."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()

    async def unless_lost(self, work: Awaitable[T]) -> T:
        """What comes of `work`. Raises `LostError` as soon as the connection is lost."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                return await work
        except TimeoutError as error:
            if scope.expired():
                raise LostError from error
            raise
        finally:
            self._scopes.discard(scope)

    def lose(self) -> None:
        """The connection is lost: what was asked over it will not be answered any more."""
        scopes, self._scopes = self._scopes, set()
        now = asyncio.get_running_loop().time()
        for scope in scopes:
            scope.reschedule(now)
