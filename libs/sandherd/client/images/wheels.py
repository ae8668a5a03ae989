"""The worker's packages for another kind of Python than the one that runs here: the same versions, fetched by uv."""

import os
import platform
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd.bundle import MINOR, OURS, files, needed, ours
from sandherd.client.images.base import Base
from sandherd.client.toolchains import run_uv

_OWN_PROJECTS: Final = frozenset({"sandherd", "sandherd-worker"})


def packages(base: Base, minor: str, folder: Path, environ: Mapping[str, str] = os.environ) -> Mapping[str, Path]:
    """All that goes below `lib`, by where it lies there. Raises `HerdError`, `NoWorkerError`."""
    if (minor, base.libc, base.machine) == (MINOR, _own_libc(), platform.machine()):
        return files()
    wanted = [f"{one.name}=={one.version}" for one in needed() if one.name.replace("_", "-") not in _OWN_PROJECTS]
    fetch(sorted(wanted), base, minor, folder, environ)
    fetched = {str(file.relative_to(folder)): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in fetched.items() if path.partition("/")[0] not in {*OURS, "bin"}} | ours()


def fetch(wanted: list[str], base: Base, minor: str, folder: Path, environ: Mapping[str, str] = os.environ) -> None:
    """Have these installed into a folder, as wheels for that kind of Python; nothing is built. Raises `HerdError`."""
    target = f"{base.machine}-{'unknown-linux-musl' if base.libc == 'musl' else 'manylinux_2_28'}"
    options = ["--python-version", minor, "--python-platform", target, "--only-binary", ":all:", "--no-deps"]
    run_uv(["pip", "install", "-q", "--target", str(folder), *options, *wanted], environ)


def _own_libc() -> str:
    return "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "gnu"
