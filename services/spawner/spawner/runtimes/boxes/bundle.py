"""The worker as one archive, for boxes whose image lacks it: our packages and all that they need, for a Python there.

It is made of what this spawner itself runs with: same versions, and the same minor version of Python.
"""

import functools
import io
import re
import sys
import tarfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

WORKER: Final = "/opt/sandherd"
"""Where the worker is in a box, in an image of ours as well as where it was brought."""
_WANTED: Final = "sandherd-worker"
_MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
_START: Final = f"""#!/bin/sh
python=$(command -v python{_MINOR} || command -v python3) || python=
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})' 2>/dev/null || {{
  echo "this image has no Python {_MINOR}, which the worker needs here: install it, or make an image with" >&2
  echo "sandherd image build" >&2
  exit 2
}}
PYTHONPATH="$(cd "${{0%/*}}/../lib" && pwd)" exec "$python" -P -m sandherd_worker.box
"""
COMPILE: Final = (
    "/bin/sh",
    "-c",
    (
        f"python=$(command -v python{_MINOR} || command -v python3) && "
        f'exec "$python" -m compileall -q --invalidation-mode unchecked-hash {WORKER}/lib'
    ),
)
"""Run once where the worker was brought to: boxes may not write there, and would compile it at every start."""
_LEFT_OUT: Final = re.compile(r"__pycache__|\.pyc$|/tests?/")


@functools.cache
def bundle() -> bytes:
    """The archive, to be unpacked at `WORKER`."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for name in ("bin", "lib"):
            _add_folder(archive, name)
        _add(archive, "bin/sandherd-box", _START.encode(), 0o755)
        for path, file in sorted(_files().items()):
            _add(archive, f"lib/{path}", file.read_bytes(), 0o644)
    return packed.getvalue()


def _files() -> dict[str, Path]:
    found: dict[str, Path] = {}
    for one in _needed(_WANTED):
        found |= dict(_installed(one))
    for package in ("sandherd", "sandherd_worker", "sandherd_drivers"):
        found |= _of_package(package)
    return {path: file for path, file in found.items() if not _LEFT_OUT.search(path)}


def _needed(name: str, seen: set[str] | None = None) -> Iterator[Distribution]:
    """A distribution and all that it requires, each once."""
    seen = set() if seen is None else seen
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _needed(requirement.name, seen)


def _installed(one: Distribution) -> Iterator[tuple[str, Path]]:
    for file in one.files or []:
        place = Path(str(file.locate()))
        if ".." not in file.parts and place.is_file():
            yield str(file), place


def _of_package(name: str) -> dict[str, Path]:
    """Its files also where it is installed in place."""
    from spawner.runtimes.bubblewrap import folders_of

    found: dict[str, Path] = {}
    for folder in folders_of(name):
        found |= {str(Path(name, file.relative_to(folder))): file for file in folder.rglob("*") if file.is_file()}
    return found


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def _add_folder(archive: tarfile.TarFile, path: str) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(member)
