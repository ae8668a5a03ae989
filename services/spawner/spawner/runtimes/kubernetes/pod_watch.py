"""Follows changes of pods: a list, then a watch from its resource version on, until closed."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.kubernetes.cluster import OPENED, Cluster
from spawner.runtimes.kubernetes.faults import VERSION_EXPIRED, faults, refusal
from spawner.runtimes.kubernetes.manifests import Json

_SHORT: Final = 0.5
"""A watch without events that ends within this many seconds has failed, rather than reached its end."""

_AGAIN: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED, ProviderFault.TIMED_OUT})
"""Errors after which waiting continues: one request has failed, but the object may still get the expected state."""
_CUT: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.TIMED_OUT})
"""Errors of a watch that was closed by a proxy, or whose server stopped responding."""
_PAUSE: Final = 0.5
"""The delay in seconds before an interrupted watch is restarted."""


@dataclass(frozen=True)
class PodList:
    """All existing objects. An object that was reported before and is not in this list was deleted."""

    items: list[Json]


@dataclass(frozen=True)
class PodChange:
    """One object in its current state, or its last state if it was deleted."""

    item: Json
    deleted: bool


@dataclass(frozen=True)
class WatchState:
    """Whether the watch works: False after one has failed, until the next one has received a message.

    A watch that begins after a list works as soon as the server has accepted it: no change is missing between them.
    """

    works: bool


WatchItem = PodList | PodChange | WatchState


async def follow(cluster: Cluster, path: str, **query: str) -> AsyncGenerator[WatchItem, None]:
    """Yield all objects, then each change; all objects again if the server no longer has some of the changes.

    A message without a change yields only the state of the watch. Runs until closed. Raises `ProviderError`.
    """
    while True:
        with faults("listing"):
            listed = await cluster.get(path, **query)
        yield PodList(listed["items"])
        version: str | None = listed["metadata"]["resourceVersion"]
        is_listed = True
        while version is not None:
            async with aclosing(_from(cluster, path, version, query, is_listed=is_listed)) as items:
                async for reached, one in items:
                    version = reached
                    yield one
            is_listed = False


async def _from(
    cluster: Cluster, path: str, version: str, query: dict[str, str], *, is_listed: bool
) -> AsyncGenerator[tuple[str | None, PodChange | WatchState], None]:
    """One watch, until it ends or is interrupted. The version is None if it is too old to continue from.

    `is_listed`: the version is that of a list, so nothing is missing once the watch is accepted.
    """
    began, received, cut = time.monotonic(), False, False
    try:
        with faults("watching"):
            async with aclosing(_reports(cluster, path, version, query, is_listed=is_listed)) as reports:
                async for reached, one in reports:
                    yield reached, one
                    if reached is None:
                        return
                    received, version = True, reached
    except ProviderError as error:
        if error.fault not in _CUT or not (received or time.monotonic() - began >= _SHORT):
            raise
        cut = True
    if not cut and not received and time.monotonic() - began < _SHORT:
        raise ProviderError(ProviderFault.TRANSIENT, "kubernetes: watching: the connection ended at once")
    if cut or not received:
        yield version, WatchState(False)  # the next watch continues from this version, so that nothing is missed


async def _reports(
    cluster: Cluster, path: str, version: str, query: dict[str, str], *, is_listed: bool
) -> AsyncGenerator[tuple[str | None, PodChange | WatchState], None]:
    async with aclosing(cluster.watch(path, version, **query)) as events:
        async for event in events:
            if event["type"] != OPENED:
                yield _item(event)
            elif is_listed:
                yield version, WatchState(True)


def _item(event: Json) -> tuple[str | None, PodChange | WatchState]:
    """The version to continue from (None: it is too old), and the reported change or state. Raises `ProviderError`."""
    kind, item = event["type"], event["object"]
    if kind == "ERROR":
        if item.get("code") == VERSION_EXPIRED:
            return None, WatchState(False)
        raise refusal(item.get("code", 0), item, {}, "watching")
    version: str = item["metadata"]["resourceVersion"]
    return version, WatchState(True) if kind == "BOOKMARK" else PodChange(item, kind == "DELETED")


async def until(
    cluster: Cluster, path: str, name: str, holds: Callable[[Json | None], bool], seconds: float
) -> Json | None:
    """The object with this name once `holds` is true of it; None: it does not exist. Raises `ProviderError`."""
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
        message = f"kubernetes: waiting for {name}: timed out after {seconds:g} s"
        raise ProviderError(ProviderFault.TIMED_OUT, message) from error


async def _first(cluster: Cluster, path: str, name: str, holds: Callable[[Json | None], bool]) -> Json | None:
    async with aclosing(follow(cluster, path, fieldSelector=f"metadata.name={name}")) as items:
        async for one in items:
            if not isinstance(one, WatchState) and holds(last := _only(one)):
                return last
    raise AssertionError("follow runs until it is closed")


def _only(one: PodList | PodChange) -> Json | None:
    """The object that is followed; None if it does not exist."""
    if isinstance(one, PodList):
        return one.items[0] if one.items else None
    return None if one.deleted else one.item
