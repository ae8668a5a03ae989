"""Finds git directories in files from a sandbox: git would run the programs that their hooks and settings name."""

import os
import shutil
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.terminal_text import visible_line
from sandherd.contracts.errors import Code

_MAX_LISTED: Final = 5


def is_git(name: str) -> bool:
    """Whether a file system may treat this name as `.git`: some ignore case and invisible characters."""
    return _normalized(name) == ".git"


def _normalized(name: str) -> str:
    return "".join(letter for letter in name if unicodedata.category(letter) != "Cf").casefold()


def git_entries(folder: Path) -> Iterator[Path]:
    """All entries below a folder that are named `.git`: folders, files and links. Links are not followed."""
    for entry in folder.iterdir():
        if is_git(entry.name):
            yield entry
        elif entry.is_dir() and not entry.is_symlink():
            yield from git_entries(entry)


def is_bare_repository(names: Iterable[str]) -> bool:
    """Whether git uses a folder with these entries as a repository, as `is_git_directory` in git's setup.c."""
    normalized = {_normalized(name) for name in names}
    return "head" in normalized and (normalized >= {"objects", "refs"} or "commondir" in normalized)


class GitFilter:
    """A filter for `archive.unpack` that leaves out git directories unless `with_git`, and records what it left out.

    It skips everything named `.git`, with its contents. In other folders that git would use as a bare repository it
    deletes `HEAD`: without this file they are not repositories.
    """

    def __init__(self, *, with_git: bool) -> None:
        self._with_git = with_git
        self._left_out: dict[str, None] = {}

    def __call__(self, path: str) -> bool:
        """Whether to skip the entry of this path."""
        parts = path.split("/")
        depth = next((index for index, part in enumerate(parts) if is_git(part)), None)
        if self._with_git or depth is None:
            return False
        self._left_out.setdefault("/".join(parts[: depth + 1]))
        return True

    def prune(self, unpacked: Path, target: Path) -> None:
        """Delete files that would make a folder a bare repository, alone or together with files that the target has.

        `unpacked` is the temporary folder of the archive's contents, `target` the folder they are moved to.
        """
        if self._with_git:
            return
        for directory, folders, files in os.walk(unpacked):
            staged = [*folders, *files]
            below = Path(directory).relative_to(unpacked)
            if not is_bare_repository([*staged, *_names(target / below)]):
                continue
            heads = [name for name in staged if _normalized(name) == "head"]
            # Without a new HEAD, the target has one: its folder must not get objects, settings or hooks.
            for name in heads or staged:
                self._left_out.setdefault(str(below / name))
                _delete(Path(directory, name))
            # `os.walk` does not enter the folders that were deleted.
            folders[:] = [name for name in folders if heads and name not in heads]

    def check(self, path: str) -> None:
        """Raise `HerdError` if the source of a copy is itself named `.git`."""
        if not self._with_git and is_git(PurePosixPath(path).name):
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"{path}: git here would run the programs that it names",
                field="path",
                remedy="copy it with --with-git if you trust what is in it",
            )

    def report(self) -> None:
        """Print one line with the paths that were left out, if there are any."""
        if not self._left_out:
            return
        listed = ", ".join(visible_line(path[:200]) for path in list(self._left_out)[:_MAX_LISTED])
        more = f" and {len(self._left_out) - _MAX_LISTED} more" if len(self._left_out) > _MAX_LISTED else ""
        print_error(f"left out {listed}{more}: git here would run the programs that it names; --with-git copies it")


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _delete(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink()
