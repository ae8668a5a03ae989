"""Properties of a pull request that all forges derive: its commits after pushes, its mergeability, and its checks."""

from typing import Final

from tests.doubles.forges.forge_state import Check, Pull, Repository
from tests.doubles.forges.merges import try_merge

_PASSED: Final = frozenset({"success", "neutral", "skipped"})


def refresh(repository: Repository, unknown_gets: int) -> None:
    """Bring the open pull requests up to date with the branches, after pushes."""
    branches = repository.git.branches()
    for pull in repository.pulls.values():
        if pull.state != "open":
            continue
        head, base = branches.get(pull.head), branches.get(pull.base)
        if head is None or base is None:
            pull.state = "closed"
            continue
        if (head, base) != (pull.head_sha, pull.base_sha):
            pull.head_sha, pull.base_sha = head, base
            pull.unknown_gets, pull.shown_unknown = unknown_gets, True


def mergeable(repository: Repository, pull: Pull) -> bool:
    """Whether git can merge the pull request."""
    return try_merge(repository.git, pull.base_sha, pull.head_sha).tree is not None


def latest(repository: Repository, commit: str) -> dict[str, Check]:
    """The latest check run or status of each name."""
    return {one.name: one for one in repository.checks if one.commit == commit}


def outcome(check: Check | None) -> str:
    """The outcome of a required check: `expected` (not reported), `pending`, `failing` or `success`."""
    if check is None:
        return "expected"
    if check.status != "completed" or check.conclusion == "pending":
        return "pending"
    return "success" if check.conclusion in _PASSED else "failing"
