"""Debian's packages unpacked beside the checkout, without installing anything on this machine."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

BUILD = Path(__file__).parents[2] / "build" / "engines"


@contextmanager
def alone(name: str, build: Path = BUILD) -> Iterator[Path]:
    """Hold a lock of all test processes, as what the block makes is shared by them."""
    build.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(build / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield build / name
    finally:
        os.close(descriptor)


def unpacked(*packages: str) -> Path:
    """A folder with the files of these packages. Raises `subprocess.CalledProcessError` if they are not available."""
    with alone("packages") as root:
        marks = root / ".unpacked"
        marks.mkdir(parents=True, exist_ok=True)
        missing = [package for package in packages if not (marks / package).exists()]
        if missing:
            _fetch(missing, root)
        for package in missing:
            (marks / package).touch()
        return root


def fetched(name: str, *packages: str) -> Path:
    """A folder with these packages as files. Raises `subprocess.CalledProcessError` if they are not available."""
    with alone(f"debs-{name}") as folder:
        if not folder.exists():
            part = folder.with_suffix(".part")
            _download(packages, part)
            part.rename(folder)
        return folder


def _fetch(packages: list[str], root: Path) -> None:
    folder = root / "fetched"
    _download(packages, folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg", "-x", str(package), str(root)], folder)
    shutil.rmtree(folder)


def _download(packages: Iterable[str], folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o755)
    try:
        _run(["apt-get", "download", "-q", *packages], folder)
    except subprocess.CalledProcessError:
        _run(["apt-get", "update", "-q"], folder)
        _run(["apt-get", "download", "-q", *packages], folder)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, stdin=subprocess.DEVNULL, timeout=300)


def mirror() -> str:
    """The Debian mirror of this machine."""
    apt = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)"], check=True, capture_output=True, text=True
    )
    sites = [line.split()[0] for line in apt.stdout.splitlines() if line.strip().endswith("bookworm")]
    return sites[0]
