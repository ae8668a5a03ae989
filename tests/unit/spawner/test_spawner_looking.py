"""Looking at what runtimes have: one that goes wrong in a way that nobody foresaw keeps no other from being seen."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from spawner.runtimes.boxes.asking import patiently
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, Seen
from spawner.sandboxes.looking import look_at_all
from tests.patience import PATIENCE


def _runtime(name: str, found: Any) -> Any:
    async def find_all() -> list[Seen]:
        if isinstance(found, Exception):
            raise found
        return list(found)

    async def find_kept() -> list[str]:
        return []

    return SimpleNamespace(name=name, find_all=find_all, find_kept=find_kept)


@pytest.mark.parametrize(
    "error", [RuntimeFailedError(RuntimeFault.UNAVAILABLE, "away"), OSError("gone"), ValueError("no number")]
)
async def test_a_runtime_that_goes_wrong_hides_no_other(error: Exception) -> None:
    """It is known to be silent, whatever it was."""
    well = _runtime("well", [Seen("sbx-1", alive=True)])
    there = await look_at_all({"ill": _runtime("ill", error), "well": well}, 5)
    assert there.units.keys() == {"sbx-1"}
    assert there.silent == {"ill"}


async def test_news_go_on_after_what_nobody_understands() -> None:
    """An answer that is none of the provider's ends no watch for ever."""
    tried = 0

    async def changes() -> AsyncIterator[str]:
        nonlocal tried
        tried += 1
        if tried == 1:
            raise ValueError("half a line")
        yield "sbx-1"

    news = patiently(changes, 0)
    async with asyncio.timeout(PATIENCE):
        assert await anext(news) == "sbx-1"
    await news.aclose()  # type: ignore[attr-defined]  # it is a generator
