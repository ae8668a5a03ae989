"""What was in this repository at an earlier commit."""

import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
_REMEDY: Final = "have the whole history: `git fetch --unshallow`"


class NoHistoryError(Exception):
    """A commit is not in this clone. The message says what helps."""


def archived(commit: str, *folders: str) -> Iterator[tuple[str, bytes]]:
    """The files of these folders, by their paths. Raises `NoHistoryError`."""
    done = _git("archive", commit, *folders)
    with tarfile.open(fileobj=BytesIO(done)) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            if file is not None:
                yield member.name, file.read()


def whole_name(commit: str) -> str:
    """The commit's own name, of whatever was said for it. Raises `NoHistoryError`."""
    return _git("rev-parse", "--verify", f"{commit}^{{commit}}").decode().strip()


def _git(*words: str) -> bytes:
    # A checkout may well be another user's: nothing of it is run.
    command = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), *words]
    done = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        told = " ".join(done.stderr.decode(errors="replace").split())
        raise NoHistoryError(f"git {words[0]}: {told}; {_REMEDY}")
    return done.stdout
