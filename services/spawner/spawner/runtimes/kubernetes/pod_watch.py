"""Follows changes of objects, such as pods: lists them, then watches for changes after the list's resource version."""

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

_MIN_WATCH_SECONDS: Final = 0.5
"""A watch without events that ends within this time has failed, and has not reached its normal end."""

_RETRIED: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.RATE_LIMITED, ProviderFault.TIMED_OUT})
"""Errors of a request after which `until` continues to wait, because the object may still get the expected state."""
_INTERRUPTIONS: Final = frozenset({ProviderFault.TRANSIENT, ProviderFault.TIMED_OUT})
"""Errors of a watch that a proxy has closed, or whose server no longer responds."""
_RETRY_SECONDS: Final = 0.5
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
    """Whether the watch works. It does not after a watch has failed, until the next one has received a message.

    A watch that begins after a list works as soon as the server has accepted it, because no change is missing between
    the list and the watch.
    """

    works: bool


WatchItem = PodList | PodChange | WatchState


async def follow(cluster: Cluster, path: str, **query: str) -> AsyncGenerator[WatchItem, None]:
    """Yield all objects, then each change. If the server no longer has some of the changes, yield all objects again.

    A message without a change yields only the state of the watch. Runs until closed. Raises `ProviderError`.
    """
    while True:
        with faults("listing"):
            reply = await cluster.get(path, **query)
        yield PodList(reply["items"])
        version: str | None = reply["metadata"]["resourceVersion"]
        is_listed = True
        while version is not None:
            async with aclosing(_watch_once(cluster, path, version, query, is_listed=is_listed)) as items:
                async for next_version, item in items:
                    version = next_version
                    yield item
            is_listed = False


async def _watch_once(
    cluster: Cluster, path: str, version: str, query: dict[str, str], *, is_listed: bool
) -> AsyncGenerator[tuple[str | None, PodChange | WatchState], None]:
    """One watch, until it ends or is interrupted. Yields the version to continue from with each change or state.

    The version is None if it is too old. `is_listed`: whether `version` is that of a list.
    """
    began, received, interrupted = time.monotonic(), False, False
    try:
        with faults("watching"):
            async with aclosing(_watch_items(cluster, path, version, query, is_listed=is_listed)) as items:
                async for next_version, item in items:
                    yield next_version, item
                    if next_version is None:
                        return
                    received, version = True, next_version
    except ProviderError as error:
        if error.fault not in _INTERRUPTIONS or not (received or time.monotonic() - began >= _MIN_WATCH_SECONDS):
            raise
        interrupted = True
    if not interrupted and not received and time.monotonic() - began < _MIN_WATCH_SECONDS:
        raise ProviderError(ProviderFault.TRANSIENT, "kubernetes: watching: the connection ended at once")
    if interrupted or not received:
        yield version, WatchState(False)  # the next watch continues from this version, so that no change is missing


async def _watch_items(
    cluster: Cluster, path: str, version: str, query: dict[str, str], *, is_listed: bool
) -> AsyncGenerator[tuple[str | None, PodChange | WatchState], None]:
    async with aclosing(cluster.watch(path, version, **query)) as events:
        async for event in events:
            if event["type"] != OPENED:
                yield _item(event)
            elif is_listed:
                yield version, WatchState(True)


def _item(event: Json) -> tuple[str | None, PodChange | WatchState]:
    """The version to continue from (None: too old), and the change or state in an event. Raises `ProviderError`."""
    kind, item = event["type"], event["object"]
    if kind == "ERROR":
        if item.get("code") == VERSION_EXPIRED:
            return None, WatchState(False)
        raise refusal(item.get("code", 0), item, {}, "watching")
    version: str = item["metadata"]["resourceVersion"]
    return version, WatchState(True) if kind == "BOOKMARK" else PodChange(item, kind == "DELETED")


async def until(
    cluster: Cluster, path: str, name: str, condition: Callable[[Json | None], bool], seconds: float
) -> Json | None:
    """The object with this name once `condition` is true of it; None: it does not exist. Raises `ProviderError`."""
    try:
        async with asyncio.timeout(seconds):
            while True:
                try:
                    return await _wait_for(cluster, path, name, condition)
                except ProviderError as error:
                    if error.fault not in _RETRIED:
                        raise
                    await asyncio.sleep(error.wait or _RETRY_SECONDS)
    except TimeoutError as error:
        message = f"kubernetes: waiting for {name}: timed out after {seconds:g} s"
        raise ProviderError(ProviderFault.TIMED_OUT, message) from error


async def _wait_for(cluster: Cluster, path: str, name: str, condition: Callable[[Json | None], bool]) -> Json | None:
    async with aclosing(follow(cluster, path, fieldSelector=f"metadata.name={name}")) as items:
        async for item in items:
            if not isinstance(item, WatchState) and condition(current := _followed_object(item)):
                return current
    raise AssertionError("follow runs until it is closed")


def _followed_object(item: PodList | PodChange) -> Json | None:
    """The only object that is followed; None if it does not exist."""
    if isinstance(item, PodList):
        return item.items[0] if item.items else None
    return None if item.deleted else item.item
