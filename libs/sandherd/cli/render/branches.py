"""Describes branches: as rows of a list, as facts, and with the commands that a user can run next."""

import shlex
from typing import TYPE_CHECKING, Any, Final

from sandherd.cli.render.table import Column
from sandherd.contracts.states import BranchState
from sandherd.plurals import pluralize

if TYPE_CHECKING:
    from sandherd.contracts.pull_requests import PullRequestView
    from sandherd.contracts.requests import BranchView

HEADER: Final = (
    Column("BRANCH", cut=True),
    "STATE",
    "CHANGES",
    Column("PUSHED", 2),
    Column("PR", 2),
    Column("PROBLEM", 1, cut=True),
    Column("UPDATED", 4),
    Column("TASK", 5),
    Column("REPOSITORY", 6, cut=True),
    Column("ID", 3),
)
OPEN: Final = "open"
"""The state of a pull request that is neither merged nor closed."""
_MAX_CHECKS: Final = 5
_SHORT_COMMIT_LENGTH: Final = 12
_OMITTED_FIELDS: Final = frozenset(
    {"diff", "bundle", "commits", "files_changed", "additions", "deletions", "approve"}
) | {"pull_request"}
_MAX_PATHS: Final = 5


def row(view: "BranchView") -> list[object]:
    """The cells of a branch in a list."""
    task = view.tasks[-1] if view.tasks else None
    lines = f"+{view.additions} −{view.deletions}"
    return [
        view.branch, view.state, lines, _pushed_cell(view), pull_request(view), view.problem, view.updated_at, task,
        view.repository, view.id,
    ]  # fmt: skip


def facts_of(view: "BranchView") -> dict[str, Any]:
    """The facts of a branch, by their labels."""
    facts = {name: value for name, value in view if name not in _OMITTED_FIELDS}
    return (
        facts | {"changes": changes(view), "to_approve": view.approve or None} | pull_request_facts(view.pull_request)
    )


def pull_request(view: "BranchView") -> str | None:
    """The number and the state of the pull request; without one, whether it is pending or has a problem."""
    request = view.pull_request
    if request is None:
        return "problem" if view.pull_request_problem else "pending" if view.pull_request_waits else None
    return f"#{request.number} {_pull_request_state(request)}"


def _pull_request_state(request: "PullRequestView") -> str:
    if request.state != OPEN:
        return request.state
    if request.queued:
        return "queued"
    blocked = request.obstacle if request.mergeable == "no" else None
    return "draft" if request.draft else f"{OPEN}: {blocked}" if blocked else OPEN


def pull_request_facts(request: "PullRequestView | None") -> dict[str, Any]:
    """The facts of a pull request, by their labels; empty if there is none."""
    if request is None:
        return {}
    checks = ", ".join((*request.failed_checks, *request.pending_checks)[:_MAX_CHECKS])
    return {
        "pull_request": f"{request.url} ({_pull_request_state(request)})",
        "into": request.base or None,
        "checks": f"{request.checks}: {checks}" if checks else request.checks,
        "reviews": request.reviews,
        "mergeable": request.mergeable,
    }


def changes(view: "BranchView") -> str:
    """The number of commits, lines and files that were saved since the base commit."""
    if not view.commits:
        return "no commits"
    lines = f"+{view.additions} −{view.deletions}"
    return f"{pluralize(view.commits, 'commit')}, {lines} in {pluralize(view.files_changed, 'file')}"


def summary(view: "BranchView") -> str:
    """The branch, its commit and the size of its changes, in one line."""
    return f"{view.branch} at {view.commit[:_SHORT_COMMIT_LENGTH]}: {changes(view)}"


def next_steps(view: "BranchView") -> list[str]:
    """Lines with the problem that prevents progress, and with the commands to continue."""
    if view.state is not BranchState.LIVE:
        return []
    name = shlex.quote(view.branch)
    lines = [f"problem: {view.problem}"] if view.problem else []
    if view.saving:
        return [*lines, f"commits are still being checked; see `sandherd branches show {name}`"]
    if not view.commits:
        return lines
    if view.local:
        return [*lines, f"get it into your repository with `sandherd branches fetch {name}`"]
    return [*lines, *_push_steps(view, name)]


def paths_to_approve(view: "BranchView") -> str:
    """The first paths that need approval, in one line."""
    more = len(view.approve) - _MAX_PATHS
    return ", ".join(view.approve[:_MAX_PATHS]) + (f" and {more} more" if more > 0 else "")


def _push_steps(view: "BranchView", name: str) -> list[str]:
    if view.pushed_commit == view.commit:
        renamed = f" as {view.pushed_branch}" if view.pushed_branch else ""
        return [f"pushed to {view.repository}{renamed}", *_pull_request_steps(view, name), *_approval_steps(view, name)]
    if view.approve:
        return _approval_steps(view, name)
    if view.pushing:
        return [f"not pushed yet; see `sandherd branches show {name}`"]
    return [f"not pushed; push it with `sandherd branches push {name}`"]


def _approval_steps(view: "BranchView", name: str) -> list[str]:
    """Lines with the paths that need approval for a push or a merge, and the commands to approve them."""
    if not view.approve:
        return []
    return [
        f"a user has to approve changes of: {paths_to_approve(view)}",
        f"see them with `sandherd branches diff {name}`",
        f"approve them with `sandherd branches push {name} --approve-paths`",
    ]


def _pull_request_steps(view: "BranchView", name: str) -> list[str]:
    lines = [f"pull request: {view.pull_request_problem}"] if view.pull_request_problem else []
    if view.pull_request is None:
        return [*lines, f"open a pull request with `sandherd branches pr {name}`"]
    return [f"pull request {view.pull_request.url} is {_pull_request_state(view.pull_request)}", *lines]


def _pushed_cell(view: "BranchView") -> str:
    if view.local:
        return "-"
    if view.pushed_commit == view.commit:
        return "yes"
    return "approve" if view.approve else "pending" if view.pushing or view.saving else "no"
