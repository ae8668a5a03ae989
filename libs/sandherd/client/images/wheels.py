"""The worker's packages for another kind of Python than the one that runs here: the same versions, fetched by uv."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bundle import files, installed, needed, ours
from sandherd.client.images.base import OWN, Kind
from sandherd.client.toolchains import run_uv

_PLATFORMS: Final = {"musl": "unknown-linux-musl", "gnu": "manylinux_2_28"}


def packages(kind: Kind, folder: Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, Path]:
    """All that goes below `lib`, by where it lies there. Raises `HerdError`, `NoWorkerError`.

    What is Python alone is taken as it is installed here.
    """
    if kind == OWN:
        return files()
    found: dict[str, Path] = {}
    wanted = []
    for one in needed():
        parts = installed(one)
        if any(path.endswith(".so") for path in parts):
            wanted.append(f"{one.name}=={one.version}")
        else:
            found |= parts
    fetch(wanted, kind, folder, environ)
    found |= {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in found.items() if not path.startswith("bin/")} | ours()


def fetch(wanted: list[str], kind: Kind, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Have these put into a folder, as wheels for that kind of Python; nothing is built. Raises `HerdError`."""
    platform = f"{kind.machine}-{_PLATFORMS[kind.libc]}"
    chosen = ["--python", sys.executable, "--python-version", kind.minor, "--python-platform", platform]
    ready = ["--only-binary", ":all:", "--no-deps"]
    run_uv(["pip", "install", "-q", "--target", str(folder), *chosen, *ready, *wanted], environ)
