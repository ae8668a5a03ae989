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

_MAX_SHOWN: Final = 5


def is_git(name: str) -> bool:
    """Whether a file system may treat this name as `.git`: some ignore case and invisible characters."""
    return _folded(name) == ".git"


def _folded(name: str) -> str:
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
    found = {_folded(name) for name in names}
    return "head" in found and (found >= {"objects", "refs"} or "commondir" in found)


class GitFilter:
    """A filter for `archive.unpack` that leaves out git directories unless `keeps`, and records what it left out.

    It skips everything named `.git`, with its contents. In other folders that git would use as a bare repository it
    deletes `HEAD`: without this file they are not repositories.
    """

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._found: dict[str, None] = {}

    def __call__(self, path: str) -> bool:
        """Whether to skip the entry of this path."""
        parts = path.split("/")
        depth = next((index for index, part in enumerate(parts) if is_git(part)), None)
        if self._keeps or depth is None:
            return False
        self._found.setdefault("/".join(parts[: depth + 1]))
        return True

    def prune(self, unpacked: Path, target: Path) -> None:
        """Delete files that would make a folder a bare repository, with the files that the target has there already.

        `unpacked` is the temporary folder of the archive's contents, `target` the folder they are moved to.
        """
        if self._keeps:
            return
        for place, folders, files in os.walk(unpacked):
            staged = [*folders, *files]
            below = Path(place).relative_to(unpacked)
            if not is_bare_repository([*staged, *_names(target / below)]):
                continue
            heads = [name for name in staged if _folded(name) == "head"]
            # Without a new HEAD, the target has one: its folder must not get objects, settings or hooks.
            for name in heads or staged:
                self._found.setdefault(str(below / name))
                _delete(Path(place, name))
            folders[:] = [name for name in folders if heads and name not in heads]

    def check(self, path: str) -> None:
        """Raise `HerdError` if the source of a copy is itself named `.git`."""
        if not self._keeps and is_git(PurePosixPath(path).name):
            raise HerdError.of(
                Code.INVALID_FIELD,
                f"{path}: git here would run the programs that it names",
                field="path",
                remedy="copy it with --with-git if you trust what is in it",
            )

    def report(self) -> None:
        """Print one line with the paths that were left out, if there are any."""
        if not self._found:
            return
        shown = ", ".join(visible_line(path[:200]) for path in list(self._found)[:_MAX_SHOWN])
        more = f" and {len(self._found) - _MAX_SHOWN} more" if len(self._found) > _MAX_SHOWN else ""
        print_error(f"left out {shown}{more}: git here would run the programs that it names; --with-git copies it")


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
