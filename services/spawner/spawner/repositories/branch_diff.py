"""Computes the changes of a branch in a mirror: its commits, paths, lines and diff. No sandbox can forge them."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sandherd.archives.gitignore import GitignoreRules
from sandherd.archives.ignore import parents
from spawner.repositories.branch_record import BranchSize
from spawner.repositories.mirror import Mirror

_DIFF: Final = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
"""The first arguments of each `git diff`: no program that is configured runs, and the output has a fixed form."""
_MAX_PATH_LENGTH: Final = 200
"""Maximum characters of a path in an event, which lists up to 2,000 paths and has to fit into a message."""
ChangedLines = Mapping[str, tuple[int, int]]
"""The numbers of added and removed lines by changed path. Both are 0 for a binary file."""


async def changed_lines(mirror: Mirror, base: str, commit: str) -> ChangedLines:
    """The changed lines between two commits. Raises `GitError`."""
    # This command fails if there are too many paths: a small tree that repeats subtrees can have any number of paths,
    # and the diff below would need memory for each.
    await mirror.run("ls-tree", "-r", "-z", "--name-only", "--end-of-options", commit)
    printed = await mirror.run(*_DIFF, "--numstat", "-z", "--end-of-options", base, commit)
    return await asyncio.to_thread(_parse_numstat, printed)


def _parse_numstat(printed: str) -> ChangedLines:
    rows = (row.split("\t", 2) for row in printed.split("\0") if row)
    return {path: (_number(added), _number(removed)) for added, removed, path in rows}


async def branch_size(mirror: Mirror, base: str, commit: str, lines: ChangedLines) -> BranchSize:
    """The size of a branch's changes since its base commit. Raises `GitError`."""
    return BranchSize(
        commits=int(await mirror.run("rev-list", "--count", "--end-of-options", f"{base}..{commit}")),
        files_changed=len(lines),
        additions=sum(added for added, _ in lines.values()),
        deletions=sum(removed for _, removed in lines.values()),
    )


async def write_diff(mirror: Mirror, base: str, commit: str, file: Path) -> None:
    """Write the diff between two commits in the format of `git apply`. Raises `GitError`."""
    await mirror.run(*_DIFF, "--binary", "--full-index", f"--output={file}", "--end-of-options", base, commit)


def shown_path(path: str) -> str:
    """The path as valid text, truncated if it is long. Git stores paths as bytes of any encoding and length."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if len(text) <= _MAX_PATH_LENGTH else f"{text[: _MAX_PATH_LENGTH - 1]}…"


def paths_to_approve(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match a pattern. Patterns are as in .gitignore, relative to the root of the repository.

    Case is ignored, because some machines that check the branch out ignore it. A changed path that is a parent folder
    of a pattern also matches, because it is a link or a submodule, which can put files at the path of the pattern.
    """
    rules = [GitignoreRules(b"/" + pattern.lower().encode()) for pattern in patterns]
    parent_folders = {parent for pattern in patterns for parent in parents(pattern.lower())}
    lower_case_paths = ((path, path.lower()) for path in paths)
    return [
        path
        for path, lower_case in lower_case_paths
        if lower_case in parent_folders or any(_matches(one, lower_case) for one in rules)
    ]


def _matches(rules: GitignoreRules, path: str) -> bool:
    return bool(rules.verdict(path.encode("utf-8", "surrogateescape"), directory=False))


def _number(text: str) -> int:
    """A number of lines in the output of `--numstat`, which is `-` for a binary file."""
    return int(text) if text.isdecimal() else 0
