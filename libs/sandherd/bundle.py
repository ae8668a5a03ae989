"""The worker as one archive: our packages and all that they need, for the Python of a box or of an image.

It is made of what is installed here: the same versions, and, unless others are given, for the same kind of Python.
`python -m sandherd.bundle` writes it to standard output, and with `digest` what tells one from another.
"""

import gzip
import hashlib
import importlib.util
import io
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

WORKER: Final = "/opt/sandherd"
"""Where the worker is in a box, in an image of ours as well as where it was brought."""
LABEL: Final = "dev.sandherd.worker"
"""The label of an image that has the worker in it; its value is the worker's version."""
MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""Which Python this is."""
PROJECT: Final = "sandherd-worker"
OURS: Final = ("sandherd", "sandherd_worker", "sandherd_drivers")
_LEFT_OUT: Final = re.compile(r"__pycache__|\.pyc$|/tests?/")


class NoWorkerError(Exception):
    """What the worker is made of is not installed here."""


def start(minor: str = MINOR) -> str:
    """The script that starts the worker's supervisor with a Python of this kind, its own one first."""
    version = tuple(map(int, minor.split(".")))
    return f"""#!/bin/sh
python=$(command -v {WORKER}/python/bin/python3 || command -v python{minor} || command -v python3) || python=
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != {version})' 2>/dev/null || {{
  echo "this image has no Python {minor}, which the worker needs here: install it, or make an image with" >&2
  echo "sandherd image build" >&2
  exit 2
}}
PYTHONPATH="$(cd "${{0%/*}}/../lib" && pwd)" exec "$python" -P -m sandherd_worker.box
"""


def compiling(minor: str = MINOR) -> str:
    """What a shell runs once where the worker was brought to: nobody may write there later, and all would compile."""
    return (
        f"python=$(command -v {WORKER}/python/bin/python3 || command -v python{minor} || command -v python3) && "
        f'exec "$python" -m compileall -q --invalidation-mode unchecked-hash {WORKER}/lib'
    )


COMPILE: Final = ("/bin/sh", "-c", compiling())


def bundle() -> bytes:
    """The archive for boxes with this kind of Python, gzipped, to be unpacked at `WORKER`. Raises `NoWorkerError`."""
    packed = io.BytesIO()
    # It is a third of what is in it, packed in a fraction of a second; another half second would save a tenth more.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name in ("bin", "lib"):
            _add_folder(archive, name)
        _add(archive, "bin/sandherd-box", start().encode(), 0o755)
        for path, file in sorted(files().items()):
            _add(archive, f"lib/{path}", file.read_bytes(), 0o644)
    return packed.getvalue()


def digest() -> str:
    """Of all that is in the archive. Raises `NoWorkerError`."""
    found = hashlib.sha256(start().encode())
    for path, file in sorted(files().items()):
        found.update(f"{path} {file.stat().st_size}\n".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def files() -> Mapping[str, Path]:
    """All of it by where it lies below `lib`. Raises `NoWorkerError`."""
    found: dict[str, Path] = {}
    for one in needed():
        found |= installed(one)
    return found | ours()


def ours() -> dict[str, Path]:
    """Our own packages, also where they are installed in place. Raises `NoWorkerError`."""
    found: dict[str, Path] = {}
    for name in OURS:
        folders = _folders(name)
        if not folders:
            raise NoWorkerError(f"{PROJECT} is not installed here")
        for folder in folders:
            found |= {str(Path(name, file.relative_to(folder))): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in found.items() if not _LEFT_OUT.search(path)}


def needed() -> list[Distribution]:
    """The worker's distribution and all that it requires, each once. Raises `NoWorkerError`."""
    found = list(_needed(PROJECT, set()))
    if not found:
        raise NoWorkerError(f"{PROJECT} is not installed here")
    return found


def installed(one: Distribution) -> dict[str, Path]:
    """A distribution's files, by where they lie below a folder of packages."""
    found = ((str(file), Path(str(file.locate()))) for file in one.files or [] if ".." not in file.parts)
    return {path: place for path, place in found if not _LEFT_OUT.search(path) and place.is_file()}


def _needed(name: str, seen: set[str]) -> Iterator[Distribution]:
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    from packaging.requirements import Requirement  # a service knows this module for its names alone

    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _needed(requirement.name, seen)


def _folders(package: str) -> list[Path]:
    """Where a package is, without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def _add(archive: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), mode
    archive.addfile(member, io.BytesIO(content))


def _add_folder(archive: tarfile.TarFile, path: str) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    archive.addfile(member)


def main() -> str | None:
    """Does what the words of the command ask for. Returns what is wrong."""
    try:
        told = digest().encode() if sys.argv[1:] == ["digest"] else bundle()
    except NoWorkerError as error:
        return str(error)
    sys.stdout.buffer.write(told)
    return None


if __name__ == "__main__":
    sys.exit(main())
