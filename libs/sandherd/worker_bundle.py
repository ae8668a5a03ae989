"""Packs the worker as one archive: our packages, harness plugins and dependencies, for the Python of a box or an image.

It contains the packages that are installed here, and is for the same Python version unless another is given.
`python -m sandherd.worker_bundle` writes it to standard output, and with `digest` its digest.
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

from sandherd.archives.writer import add_directory, add_file
from sandherd.plugins import HARNESSES
from sandherd.plugins import installed as installed_plugins

WORKER: Final = "/opt/sandherd"
"""The worker's folder in a box, in our images and after an upload."""
LABEL: Final = "dev.sandherd.worker"
"""The label of an image that contains the worker; its value is the worker's version."""
MINOR: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
"""The version of this Python, as major and minor."""
PROJECT: Final = "sandherd-worker"
OWN_PACKAGES: Final = ("sandherd", "sandherd_worker", "sandherd_drivers")
_LEFT_OUT: Final = re.compile(r"__pycache__|\.pyc$|/tests?/")


class NoWorkerError(Exception):
    """The worker's packages are not installed here."""


def start(minor: str = MINOR) -> str:
    """The script that starts the worker's supervisor with a Python of this version, preferably the bundled one."""
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


def compiling(minor: str = MINOR, *, beside_source: bool = False) -> str:
    """The shell command that compiles the worker, to be run once after an upload.

    Later the folder is read-only, so without it every start would compile. With `beside_source` the bytecode is where
    Python also finds it if the source is removed.
    """
    options = "-q -b" if beside_source else "-q"
    return (
        f"python=$(command -v {WORKER}/python/bin/python3 || command -v python{minor} || command -v python3) && "
        f'exec "$python" -m compileall {options} --invalidation-mode unchecked-hash {WORKER}/lib'
    )


COMPILE: Final = ("/bin/sh", "-c", compiling())


def bundle() -> bytes:
    """The archive for boxes with this kind of Python, gzipped, to be unpacked at `WORKER`. Raises `NoWorkerError`."""
    packed = io.BytesIO()
    # Level 1 compresses to a third of the size. A higher level takes half a second more, and saves a further tenth.
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w") as archive,
    ):
        for name in ("bin", "lib"):
            add_directory(archive, name, 0o755)
        add_file(archive, "bin/sandherd-box", start().encode(), 0o755)
        for path, file in sorted(files().items()):
            add_file(archive, f"lib/{path}", file.read_bytes(), 0o644)
    return packed.getvalue()


def digest() -> str:
    """The SHA-256 of the archive's contents, in hexadecimal. Raises `NoWorkerError`."""
    found = hashlib.sha256(start().encode())
    for path, file in sorted(files().items()):
        found.update(f"{path} {file.stat().st_size}\n".encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def files() -> Mapping[str, Path]:
    """All files of the archive, by path below `lib`. Raises `NoWorkerError`."""
    found: dict[str, Path] = {}
    for one in needed():
        found |= installed(one)
    return found | own_files()


def own_files() -> dict[str, Path]:
    """The files of our own packages, even if they are installed in place. Raises `NoWorkerError`."""
    found: dict[str, Path] = {}
    for name in OWN_PACKAGES:
        folders = _folders(name)
        if not folders:
            raise NoWorkerError(f"{PROJECT} is not installed here")
        for folder in folders:
            found |= {str(Path(name, file.relative_to(folder))): file for file in folder.rglob("*") if file.is_file()}
    return {path: file for path, file in found.items() if not _LEFT_OUT.search(path)}


def needed() -> list[Distribution]:
    """The distributions of the worker and of harness plugins, and their dependencies, each once.

    Raises `NoWorkerError`.
    """
    seen: set[str] = set()
    found = list(_needed(PROJECT, seen))
    if not found:
        raise NoWorkerError(f"{PROJECT} is not installed here")
    return found + [one for name in _plugins() for one in _needed(name, seen)]


def installed(one: Distribution) -> dict[str, Path]:
    """The files of a distribution, by their path in the folder of packages."""
    found = ((str(file), Path(str(file.locate()))) for file in one.files or [] if ".." not in file.parts)
    return {path: place for path, place in found if not _LEFT_OUT.search(path) and place.is_file()}


def _plugins() -> list[str]:
    """The names of the distributions that have harness plugins and are not ours."""
    entries = [
        entry for plugin in installed_plugins(HARNESSES).values() if not plugin.is_builtin for entry in plugin.entries
    ]
    return sorted({entry.dist.name for entry in entries if entry.dist})


def _needed(name: str, seen: set[str]) -> Iterator[Distribution]:
    if name in seen:
        return
    seen.add(name)
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return
    yield found
    from packaging.requirements import Requirement  # a service imports this module only for its constants

    for text in found.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield from _needed(requirement.name, seen)


def _folders(package: str) -> list[Path]:
    """The folders of a package, without importing it."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


def main() -> str | None:
    """Run the command line. Returns an error message, or None."""
    try:
        output = digest().encode() if sys.argv[1:] == ["digest"] else bundle()
    except NoWorkerError as error:
        return str(error)
    sys.stdout.buffer.write(output)
    return None


if __name__ == "__main__":
    sys.exit(main())
