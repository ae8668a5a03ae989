"""Hearing what happens to pods: a list, and from its version on a watch, for as long as anybody wants to hear it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.kubernetes.cluster import Cluster
from spawner.runtimes.kubernetes.faults import GONE, faults, refusal
from spawner.runtimes.kubernetes.manifests import Json

_SHORT: Final = 0.5
"""A watch that says nothing and ends within so many seconds is broken, and not at its end."""

_AGAIN: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED, ProviderFault.TIMED_OUT})
"""That one question took too long says nothing of what is waited for."""
_CUT: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.TIMED_OUT})
"""How a watch ends that somebody on the way has ended, or that says nothing any more."""
_PAUSE: Final = 0.5
"""Before a watch that broke off is begun again, for whoever waits for something."""


@dataclass(frozen=True)
class Listed:
    """All that there is; what was there before and isn't in it, is gone."""

    items: list[Json]


@dataclass(frozen=True)
class Changed:
    """One object as it is now, or as it last was."""

    item: Json
    gone: bool


async def follow(cluster: Cluster, path: str, **query: str) -> AsyncGenerator[Listed | Changed, None]:
    """All that is there, then each change; all once more where the server no longer knows what has happened since.

    Goes on until it is closed. Raises `ProviderError`.
    """
    while True:
        with faults("listing"):
            listed = await cluster.get(path, **query)
        yield Listed(listed["items"])
        version: str | None = listed["metadata"]["resourceVersion"]
        while version is not None:
            async with aclosing(_from(cluster, path, version, query)) as news:
                async for reached, change in news:
                    version = reached
                    if change is not None:
                        yield change


async def _from(
    cluster: Cluster, path: str, version: str, query: dict[str, str]
) -> AsyncGenerator[tuple[str | None, Changed | None], None]:
    """One watch, to its end or until it is cut. The version is None where it is too old to go on from."""
    began, heard = time.monotonic(), False
    try:
        with faults("watching"):
            async with aclosing(cluster.watch(path, version, **query)) as events:
                async for event in events:
                    item = event["object"]
                    if event["type"] == "ERROR":
                        if item.get("code") == GONE:
                            yield None, None
                            return
                        raise refusal(item.get("code", 0), item, {}, "watching")
                    heard = True
                    change = None if event["type"] == "BOOKMARK" else Changed(item, event["type"] == "DELETED")
                    yield item["metadata"]["resourceVersion"], change
    except ProviderError as error:
        if error.fault not in _CUT or not (heard or time.monotonic() - began >= _SHORT):
            raise
        return  # the next one goes on from where this one was, so that nothing is missed
    if not heard and time.monotonic() - began < _SHORT:
        raise ProviderError(ProviderFault.TRANSIENT, "kubernetes: watching: the connection ended at once")


async def until(
    cluster: Cluster, path: str, name: str, holds: Callable[[Json | None], bool], seconds: float
) -> Json | None:
    """The object of this name once `holds` is true of it; None stands for its absence. Raises `ProviderError`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _first(cluster, path, name, holds)
                except ProviderError as error:
                    if error.fault not in _AGAIN:
                        raise
                    await asyncio.sleep(error.wait or _PAUSE)
    except TimeoutError as error:
        told = f"kubernetes: waiting for {name}: nothing came of it within {seconds:g} s"
        raise ProviderError(ProviderFault.TIMED_OUT, told) from error


async def _first(cluster: Cluster, path: str, name: str, holds: Callable[[Json | None], bool]) -> Json | None:
    async with aclosing(follow(cluster, path, fieldSelector=f"metadata.name={name}")) as news:
        async for one in news:
            last = _only(one)
            if holds(last):
                return last
    raise AssertionError("it goes on until it is closed")


def _only(one: Listed | Changed) -> Json | None:
    """The one object that is asked for."""
    if isinstance(one, Listed):
        return one.items[0] if one.items else None
    return None if one.gone else one.item
