"""Listing the sandboxes of runtimes: an unexpected failure of one hides no other."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from spawner.runtimes.boxes.runtime import restarting_changes
from spawner.runtimes.contract import ObservedSandbox, RuntimeFailedError, RuntimeFault
from spawner.sandboxes.inventory import list_runtimes
from tests.patience import PATIENCE


def _runtime(name: str, found: Any) -> Any:
    async def find_all() -> list[ObservedSandbox]:
        if isinstance(found, Exception):
            raise found
        return list(found)

    async def list_quarantined() -> list[str]:
        return []

    return SimpleNamespace(name=name, find_all=find_all, list_quarantined=list_quarantined)


@pytest.mark.parametrize(
    "error", [RuntimeFailedError(RuntimeFault.UNAVAILABLE, "unreachable"), OSError("gone"), ValueError("no number")]
)
async def test_failing_runtime_hides_no_other(error: Exception) -> None:
    """A runtime whose list fails in any way is reported as silent, the others are listed."""
    well = _runtime("well", [ObservedSandbox("sbx-1", alive=True)])
    there = await list_runtimes({"ill": _runtime("ill", error), "well": well}, 5)
    assert there.units.keys() == {"sbx-1"}
    assert there.silent == {"ill"}


async def test_watch_continues_after_an_unreadable_reply() -> None:
    """A reply that is none of the provider's does not end the watch."""
    tried = 0

    async def changes() -> AsyncIterator[str]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ValueError("half a line")
        yield "sbx-1"

    news = restarting_changes(changes, 0)
    async with asyncio.timeout(PATIENCE):
        assert await anext(news) == "sbx-1"
    await news.aclose()  # type: ignore[attr-defined]  # it is a generator
