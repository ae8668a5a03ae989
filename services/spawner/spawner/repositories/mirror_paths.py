"""The paths of the mirrors of repositories, and of scratch folders beside them."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

SCRATCH: Final = ".scratch-"
"""The prefix of scratch folders, which are beside the folders of projects. No project's name begins with a dot."""


def mirrors_folder(home: Path) -> Path:
    """The folder of all mirrors, in a spawner's home."""
    return home.resolve() / "repositories"


def mirrors_of(folder: Path, project: str) -> list[Path]:
    """The existing mirrors of a project's repositories."""
    return sorted((folder / project).glob("*.git"))


def mirror_path(folder: Path, project: str, repository: str) -> Path:
    """The path of the mirror of a repository, by the name under which its project's tasks share it."""
    return folder / project / f"{sha256(repository.encode()).hexdigest()[:32]}.git"


def folder_bytes(folder: Path) -> int:
    """The size of all files in a folder, in bytes. Files that are removed meanwhile may not be counted."""
    size = 0
    for path, _, names in os.walk(folder):  # unlike `rglob`, it leaves out a folder that is removed meanwhile
        for name in names:
            with suppress(FileNotFoundError):
                status = Path(path, name).lstat()
                size += status.st_size if stat.S_ISREG(status.st_mode) else 0
    return size


@contextmanager
def scratch_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder beside the mirrors, for large files: the usual temporary folder may be small, or in memory."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as path:
        yield Path(path)
