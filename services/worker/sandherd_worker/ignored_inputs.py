"""Finds input files of a task that a restored work tree lacks: files that git ignores are not stored with it."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from sandherd.archives.ignore import IgnoreRules


def missing_ignored_inputs(work_dir: Path) -> Callable[[str], bool]:
    """A function that returns whether a relative path is ignored, does not exist, and could be created as a file."""
    rules = IgnoreRules()
    for place, folders, files in os.walk(work_dir):
        above = Path(place).relative_to(work_dir)
        rules.read(work_dir, "" if place == str(work_dir) else above.as_posix(), [*folders, *files])
        folders[:] = [name for name in folders if not rules((above / name).as_posix(), directory=True)]
    return lambda path: rules.within(path) and _is_free(work_dir, PurePosixPath(path))


def _is_free(work_dir: Path, path: PurePosixPath) -> bool:
    parents = [work_dir / parent for parent in path.parents]
    return not os.path.lexists(work_dir / path) and all(
        not os.path.lexists(parent) or (parent.is_dir() and not parent.is_symlink()) for parent in parents[:-1]
    )
