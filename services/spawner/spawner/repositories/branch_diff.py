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
_MAX_PATH_LENGTH: Final = 200
"""Maximum characters of a path in an event, which lists up to 2,000 paths and has to fit into a message."""
Lines = Mapping[str, tuple[int, int]]
"""The numbers of added and removed lines, by changed path; 0 for binary files."""


async def changed_lines(mirror: Mirror, base: str, commit: str) -> Lines:
    """The changed lines between two commits. Raises `GitError`."""
    # Fails early if there are too many paths: a small tree that repeats subtrees can have any number of paths, and
    # a diff needs memory for each.
    await mirror.run("ls-tree", "-r", "-z", "--name-only", "--end-of-options", commit)
    shown = await mirror.run(*_DIFF, "--numstat", "-z", "--end-of-options", base, commit)
    return await asyncio.to_thread(_parse_numstat, shown)


def _parse_numstat(shown: str) -> Lines:
    rows = (row.split("\t", 2) for row in shown.split("\0") if row)
    return {path: (_number(added), _number(removed)) for added, removed, path in rows}


async def branch_size(mirror: Mirror, base: str, commit: str, lines: Lines) -> BranchSize:
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
    """A path as valid text, truncated if it is long. Git stores paths as bytes of any encoding and length."""
    text = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return text if len(text) <= _MAX_PATH_LENGTH else f"{text[: _MAX_PATH_LENGTH - 1]}…"


def paths_to_approve(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match a pattern. Patterns are as in .gitignore, relative to the root of the repository.

    Case is ignored, because some machines that check the branch out ignore it. A changed path that is a parent folder
    of a pattern also matches: it is a link or a submodule, which can put files at the path of the pattern.
    """
    rules = [GitignoreRules(b"/" + pattern.lower().encode()) for pattern in patterns]
    above = {parent for pattern in patterns for parent in parents(pattern.lower())}
    lower_case_paths = ((path, path.lower()) for path in paths)
    return [path for path, low in lower_case_paths if low in above or any(_matches(one, low) for one in rules)]


def _matches(rules: GitignoreRules, path: str) -> bool:
    return bool(rules.verdict(path.encode("utf-8", "surrogateescape"), directory=False))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
