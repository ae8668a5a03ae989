"""The worker's packages for another kind of Python than the one that runs here: the same versions, fetched by uv."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bundle import OURS, files, needed, ours
from sandherd.client.images.base import OWN, Kind
from sandherd.client.toolchains import run_uv

_OWN_PROJECTS: Final = frozenset({"sandherd", "sandherd-worker"})
_PLATFORMS: Final = {"musl": "unknown-linux-musl", "gnu": "manylinux_2_28"}


def packages(kind: Kind, folder: Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, Path]:
    """All that goes below `lib`, by where it lies there. Raises `HerdError`, `NoWorkerError`."""
    if kind == OWN:
        return files()
    versions = {one.name.replace("_", "-"): one.version for one in needed()}
    fetch(
        [f"{name}=={version}" for name, version in versions.items() if name not in _OWN_PROJECTS], kind, folder, environ
    )
    fetched = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in fetched.items() if path.partition("/")[0] not in {*OURS, "bin"}} | ours()


def fetch(wanted: list[str], kind: Kind, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Have these put into a folder, as wheels for that kind of Python; nothing is built. Raises `HerdError`."""
    platform = f"{kind.machine}-{_PLATFORMS[kind.libc]}"
    chosen = ["--python", sys.executable, "--python-version", kind.minor, "--python-platform", platform]
    run_uv(
        ["pip", "install", "-q", "--target", str(folder), *chosen, "--only-binary", ":all:", "--no-deps", *wanted],
        environ,
    )
