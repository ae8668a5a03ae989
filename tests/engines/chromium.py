"""A real Chromium of Debian, unpacked with the libraries that this machine does not have, driven by Playwright."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from playwright.async_api import Browser, async_playwright, expect

from tests.engines.own_network import OwnNetwork
from tests.engines.packages import BUILD, alone, unpacked
from tests.patience import PATIENCE

_PACKAGES: Final = ("chromium", "fonts-dejavu-core", "fonts-liberation")
_INSTALLED: Final = re.compile(r"^Inst (\S+) \(", re.MULTILINE)
_FLAGS: Final = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
_FONTS: Final = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{root}/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""


def files() -> Path:
    """The folder with Chromium and its libraries. Raises `subprocess.CalledProcessError` if they are not available."""
    with alone("chromium") as listed:
        if not listed.exists():
            part = listed.with_suffix(".part")
            part.write_text("\n".join(_required()))
            part.rename(listed)
    return unpacked(*listed.read_text().split())


@asynccontextmanager
async def browser(network: OwnNetwork | None = None) -> AsyncIterator[Browser]:
    """Chromium without a window, and without connections of its own, in a network namespace if one is given."""
    root = await asyncio.to_thread(files)
    program = root / "usr" / "lib" / "chromium" / "chromium"
    expect.set_options(timeout=PATIENCE * 1000)  # its default of 5 s is too short for a busy machine
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(
            executable_path=network.entry(program) if network else program,
            args=list(_FLAGS),
            env=_environment(root),
            proxy={"server": network.proxy} if network else None,
        )
        try:
            yield chromium
        finally:
            await chromium.close()


def _required() -> list[str]:
    """Chromium, and the packages that Debian's installer would install with it on this machine."""
    command = ["apt-get", "-s", "-q", "--no-install-recommends", "install", *_PACKAGES]
    try:
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
        )
    except subprocess.CalledProcessError:
        subprocess.run(["apt-get", "update", "-q"], check=True, capture_output=True, timeout=300)
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=300
        )
    return sorted({*_INSTALLED.findall(done.stdout), *_PACKAGES})


def _environment(root: Path) -> dict[str, str | float | bool]:
    libraries = sorted({str(path.parent) for path in (root / "usr" / "lib").rglob("*.so*")} | {str(root / "lib")})
    fonts = BUILD / "fonts.conf"
    fonts.write_text(_FONTS.format(root=root, cache=BUILD / "fontcache"))
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries), "FONTCONFIG_FILE": str(fonts)}


if __name__ == "__main__":
    files()
