"""Fetches the files that a task takes from its dependencies' results, and places them into the work tree."""

import asyncio
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Final

from sandherd.archives.gitignore import GitignoreRules
from sandherd.archives.ignore import parents
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.task_inputs import TaskInput
from sandherd_worker.access.artifact_client import ArtifactClient
from sandherd_worker.assignment import Assignment
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.ignored_inputs import missing_ignored_inputs
from sandherd_worker.previous_attempt import extract_work

_EXPIRED: Final = "it is stored for some days only: submit both tasks again"
_MISSING_HINT: Final = "git may ignore it there, or the task has not written it; see `sandherd files {task}`"


class NoInputError(Exception):
    """An input can't be placed. The text names the task and the path.

    `is_temporary`: whether another attempt may succeed.
    """

    def __init__(self, task: str, reason: str, *, is_temporary: bool = False) -> None:
        self.is_temporary = is_temporary
        super().__init__(f"can't take the input from {task}: {reason}")


class PathPatterns:
    """The paths and patterns of an input. Records which of them have matched."""

    def __init__(self, paths: Sequence[str]) -> None:
        # Anchored: unlike in `.gitignore`, a name without a slash matches only at the top of the work tree.
        self._rules = {path: GitignoreRules(b"/" + os.fsencode(path)) for path in paths}
        self._matched: set[str] = set()

    def match(self, path: str) -> bool:
        """Whether a file, or a folder that contains it, matches a pattern. Records all patterns that match.

        A path with `.git` matches only a pattern with `.git`, because git runs programs that are configured there.
        """
        has_git = _has_git(path)
        matched = {
            pattern
            for pattern, rules in self._rules.items()
            if not (has_git and not _has_git(pattern)) and _matches(rules, path)
        }
        self._matched |= matched
        return bool(matched)

    @property
    def unmatched(self) -> list[str]:
        """The wanted paths that have matched no file, in their order."""
        return [path for path in self._rules if path not in self._matched]


async def place_inputs(
    inputs: Sequence[TaskInput], assignment: Assignment, line: CurrentConnection, *, restored: bool
) -> None:
    """Fetch the results of the dependencies, one after the other, and unpack the wanted files into the work tree.

    In a restored work tree, only files that git ignores are added, if they are missing. The archives are not trusted:
    an archive with an entry outside the work tree is refused, and links that lead out of the work tree are skipped.
    Raises `NoInputError`, `OSError`.
    """
    for one in inputs:
        try:
            await _place(one, assignment, line, restored=restored)
        except ContractError as error:
            expired = error.problem.code is Code.NOT_FOUND
            is_temporary = error.problem.code is Code.UNAVAILABLE
            raise NoInputError(
                one.task, f"{error}; {_EXPIRED}" if expired else str(error), is_temporary=is_temporary
            ) from None


async def _place(one: TaskInput, assignment: Assignment, line: CurrentConnection, *, restored: bool) -> None:
    if one.work is None or one.sandbox is None:
        raise NoInputError(one.task, "the spawner has not named its result")
    patterns = PathPatterns(one.paths)
    lacks = await asyncio.to_thread(missing_ignored_inputs, assignment.work_dir) if restored else _everything
    with tempfile.TemporaryFile(dir=assignment.state_dir) as file:
        await ArtifactClient(assignment, line).fetch(one.work, one.sandbox, file)
        file.seek(0)
        await asyncio.to_thread(
            extract_work, file, one.work, assignment, assignment.work_dir, outward=False, keeps=_wanted(patterns, lacks)
        )
    if patterns.unmatched:
        missing = patterns.unmatched[0]
        raise NoInputError(one.task, f"{missing!r} is not in its result: {_MISSING_HINT.format(task=one.task)}")


def _wanted(patterns: PathPatterns, lacks: Callable[[str], bool]) -> Callable[[str], bool]:
    return lambda path: patterns.match(path) and lacks(path)


def _everything(_path: str) -> bool:
    return True


def _has_git(path: str) -> bool:
    return any(part.lower() == ".git" for part in path.split("/"))


def _matches(rules: GitignoreRules, path: str) -> bool:
    name = os.fsencode(path)
    return bool(rules.verdict(name, directory=False)) or any(
        rules.verdict(os.fsencode(parent), directory=True) for parent in parents(path)
    )
