"""Files in folders of running programs, which may remove or replace a file at any moment."""

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

ELSEWHERE: Final = "store-is-elsewhere"
"""A file in the home of a broker whose server stores its files in another folder: a search of this home is useless."""


def contents_below(*folders: Path) -> dict[Path, bytes]:
    """The content of every regular file below these folders, except files that are removed during the search.

    Raises `OSError` for a file that can't be read for another reason: a search without permission must not succeed.
    """
    assert not any((folder / ELSEWHERE).exists() for folder in folders), "a shared broker: mark this test `own_broker`"
    found = {}
    for path in _regular_files(*folders):
        try:
            found[path] = path.read_bytes()
        except FileNotFoundError:
            continue
    return found


def owners_below(*folders: Path) -> set[int]:
    """The user ids of these folders and of everything below them, except what is removed during the search."""
    found = set()
    for path in (place for top in folders for place in _everything_below(top)):
        with suppress(FileNotFoundError):
            found.add(path.lstat().st_uid)
    return found


def holding(content: bytes, *folders: Path) -> list[Path]:
    """The regular files below these folders that contain these bytes."""
    return [path for path, found in contents_below(*folders).items() if content in found]


def _everything_below(top: Path) -> Iterator[Path]:
    yield top
    for place, folders, names in os.walk(top, onerror=_unless_removed):
        yield from (Path(place, name) for name in (*folders, *names))


def _regular_files(*folders: Path) -> Iterator[Path]:
    for top in folders:
        for place, _, names in os.walk(top, onerror=_unless_removed):
            for name in names:
                path = Path(place, name)
                try:
                    regular = stat.S_ISREG(path.lstat().st_mode)
                except FileNotFoundError:
                    continue
                if regular:
                    yield path


def _unless_removed(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
