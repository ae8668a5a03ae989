"""What a branch changes: its commits, paths and lines, and the diff. No sandbox can forge them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from sandherd.archives.gitignore import Rules
from spawner.repositories.mirror import Mirror
from spawner.repositories.record import BranchSize

_DIFF: Final = ("diff", "--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
Lines = Mapping[str, tuple[int, int]]
"""The changed paths, with the lines that were added and removed; 0 of binary files."""


async def changed_lines(mirror: Mirror, base: str, commit: str) -> Lines:
    """What differs between two commits. Raises `GitError`."""
    shown = await mirror.run(*_DIFF, "--numstat", "-z", "--end-of-options", base, commit)
    rows = (row.split("\t", 2) for row in shown.split("\0") if row)
    return {path: (_number(added), _number(removed)) for added, removed, path in rows}


async def branch_size(mirror: Mirror, base: str, commit: str, lines: Lines) -> BranchSize:
    """How much a branch differs from its base's commit. Raises `GitError`."""
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
    """A path as valid text: names in git are bytes."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def paths_to_approve(paths: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The paths that match one of these patterns, which are as in .gitignore, anchored; case does not matter.

    Case does not matter because it does not on every machine that checks the branch out.
    """
    rules = [Rules(b"/" + pattern.lower().encode()) for pattern in patterns]
    return [path for path in paths if any(_matches(one, path.lower()) for one in rules)]


def _matches(rules: Rules, path: str) -> bool:
    return bool(rules.verdict(path.encode("utf-8", "surrogateescape"), directory=False))


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
