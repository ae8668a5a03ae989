"""The pictures in README and docs, which pages must resemble: `SANDHERD_PICTURES=1` writes them again.

The mean colours of small cells are compared, so that another rendering of the same fonts passes: hinting and smoothing
change at most 2 cells of a block, a button without its colour 12, a removed entry of the navigation 20.
"""

import base64
import os
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, Page, ViewportSize

from tests.integration.pages.conftest import new_tab
from tests.integration.pages.examples import NOW
from tests.integration.pages.gateway_double import GatewayDouble
from tests.polling import eventually

ROOT: Final = Path(__file__).parents[3]
PICTURES: Final = ROOT / "docs" / "pictures"
VIEWPORT: Final[ViewportSize] = {"width": 1280, "height": 800}
LARGEST: Final = 150_000
"""Maximum bytes of a picture; an empty page has fewer than a seventh of it."""
CHANGED: Final = 8
"""The number of different cells of a block from which on the page looks different there."""
_CELL: Final = 16
"""Pixels of a cell, in both directions."""
_COLUMNS: Final = VIEWPORT["width"] // _CELL
_BLOCK: Final = 10
"""Cells of a block, in both directions."""
_LEVELS: Final = 10
"""The difference of mean colours, of 255, that rendering does not cause."""
_MEANS: Final = """async ([text, size]) => {
    const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
    const {width, height} = await createImageBitmap(new Blob([bytes]));
    const context = new OffscreenCanvas(width, height).getContext("2d");
    context.drawImage(await createImageBitmap(new Blob([bytes])), 0, 0);
    const {data} = context.getImageData(0, 0, width, height), columns = width / size;
    const sums = new Float64Array(columns * height / size * 3);
    for (let at = 0; at < data.length; at += 4) {
        const x = at / 4 % width, y = (at / 4 - x) / width;
        const cell = 3 * (Math.floor(y / size) * columns + Math.floor(x / size));
        for (const one of [0, 1, 2]) sums[cell + one] += data[at + one];
    }
    return [...sums].map((one) => Math.round(one / size ** 2)); }"""


async def pictured_tab(chromium: Browser, double: GatewayDouble, now: datetime = NOW) -> Page:
    """A tab in which a page always looks the same: its clock is stopped."""
    page = await new_tab(chromium, double, viewport=VIEWPORT, color_scheme="light", timezone_id="UTC")
    await page.clock.set_fixed_time(now)
    return page


async def check_picture(page: Page, name: str, document: str = "README.md") -> None:
    """Wait until a page looks like its picture in a document."""
    if "SANDHERD_PICTURES" in os.environ:
        await eventually(lambda: _is_still(page, name), f"{name} does not change any more")
    committed = (PICTURES / name).read_bytes()
    assert LARGEST / 7 < len(committed) < LARGEST
    assert f"pictures/{name}" in (ROOT / document).read_text(encoding="utf-8")
    found: dict[str, int] = {}

    async def looks_alike() -> bool:
        shown = await differences(page, name)
        found.clear()
        found.update(shown)
        return max(found.values()) < CHANGED

    await eventually(looks_alike, lambda: f"the page looks as {name}: cells that differ, by block: {found}")


async def differences(page: Page, name: str) -> dict[str, int]:
    """The different blocks of a picture, by their left upper pixel, with the number of different cells."""
    shown = await _means(page, await page.screenshot(animations="disabled"))
    return changed_cells(shown, await _means(page, (PICTURES / name).read_bytes()))


def changed_cells(shown: Sequence[int], committed: Sequence[int]) -> dict[str, int]:
    """The mean colours of all cells, row by row, as differences of red, green and blue."""
    assert len(shown) == len(committed)
    found: Counter[str] = Counter({"0,0": 0})
    for cell in range(len(shown) // 3):
        row, column = divmod(cell, _COLUMNS)
        colours = slice(3 * cell, 3 * cell + 3)
        levels = [abs(one - other) for one, other in zip(shown[colours], committed[colours], strict=True)]
        if max(levels) > _LEVELS:
            found[f"{column // _BLOCK * _BLOCK * _CELL},{row // _BLOCK * _BLOCK * _CELL}"] += 1
    return dict(found)


async def _means(page: Page, picture: bytes) -> list[int]:
    means: list[int] = await page.evaluate(_MEANS, [base64.b64encode(picture).decode(), _CELL])
    return means


async def _is_still(page: Page, name: str) -> bool:
    """Write the picture; returns whether it equals the earlier one."""
    path = PICTURES / name
    before = path.read_bytes() if path.exists() else b""
    path.write_bytes(await page.screenshot(animations="disabled"))
    return path.read_bytes() == before
