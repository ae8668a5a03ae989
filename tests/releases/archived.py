"""What was in this repository at an earlier commit."""

import os
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_REMEDY: Final = "have the whole history: clone this repository, and if it is a shallow clone, `git fetch --unshallow`"


class NoHistoryError(Exception):
    """A commit is not in this clone. The message says what helps."""


def archived(commit: str, *folders: str, root: Path = ROOT) -> Iterator[tuple[str, bytes]]:
    """The files of these folders, by their paths. Raises `NoHistoryError`."""
    _have(commit, root)
    done = _git(root, "archive", commit, *folders)
    with tarfile.open(fileobj=BytesIO(done)) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def whole_name(commit: str) -> str:
    """The commit's own name, of any name for it. Raises `NoHistoryError`."""
    _have(commit, ROOT)
    return _git(ROOT, "rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()


def is_behind(commit: str) -> bool:
    """Whether it is of the history of what is checked out; else no clone of that need have it."""
    return _ran(ROOT, "merge-base", "--is-ancestor", commit, "HEAD").returncode == 0


def is_shallow(root: Path = ROOT) -> bool:
    """Whether a clone was made without the whole history."""
    return _git(root, "rev-parse", "--is-shallow-repository").strip() == b"true"


def _have(commit: str, root: Path) -> None:
    """Fetch this one commit if a shallow clone has it not; whether it came shows when it is read."""
    there = _ran(root, "cat-file", "-e", f"{commit}^{{commit}}").returncode == 0
    if not there and is_shallow(root):
        remote = _git(root, "remote").decode().split() or ["origin"]
        _ran(root, "fetch", "-q", "--no-tags", "--no-write-fetch-head", "--depth", "1", remote[0], commit)


def _git(root: Path, *words: str) -> bytes:
    done = _ran(root, *words)
    if done.returncode:
        errors = " ".join(done.stderr.decode(errors="replace").split())
        raise NoHistoryError(f"git {words[0]}: {errors}; {_REMEDY}")
    return done.stdout


def _ran(root: Path, *words: str) -> "subprocess.CompletedProcess[bytes]":
    # A checkout may well be another user's: nothing of it is run. And it must not prompt for a password.
    command = ["git", "-c", f"safe.directory={root}", "-C", str(root), *words]
    variables = os.environ | {"GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(command, env=variables, capture_output=True, check=False, stdin=subprocess.DEVNULL)
