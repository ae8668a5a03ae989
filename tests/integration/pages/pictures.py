"""The pictures of pages in the README, from real pages: tests make them, and write them with `SANDHERD_PICTURES=1`."""

import os
import struct
from pathlib import Path
from typing import Final

from playwright.async_api import Page, ViewportSize

ROOT: Final = Path(__file__).parents[3]
PICTURES: Final = ROOT / "docs" / "pictures"
"""Committed. Times and fonts differ between machines, so of their content only the size is compared."""
VIEWPORT: Final[ViewportSize] = {"width": 1280, "height": 800}
LARGEST: Final = 150_000
"""Maximum bytes of a picture; an empty page has fewer than a seventh of it."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"


async def check_picture(page: Page, name: str) -> None:
    """Check that a page can be shown as the README shows it, and that the README has its picture."""
    shown = await page.screenshot(animations="disabled")
    if "SANDHERD_PICTURES" in os.environ:
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / name).write_bytes(shown)
    committed = (PICTURES / name).read_bytes()
    assert _size_of(shown) == _size_of(committed) == (VIEWPORT["width"], VIEWPORT["height"])
    assert LARGEST / 7 < len(committed) < LARGEST
    assert f"docs/pictures/{name}" in (ROOT / "README.md").read_text(encoding="utf-8")


def _size_of(picture: bytes) -> tuple[int, int]:
    """Width and height of a PNG (PNG specification, 11.2.2)."""
    assert picture.startswith(_PNG)
    width, height = struct.unpack(">II", picture[16:24])
    return width, height
