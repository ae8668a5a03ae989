"""Opens and merges the pull requests of branches, and shows the results."""

from functools import partial

from sandherd.cli.branch_names import find_branch
from sandherd.cli.branch_output import show_result
from sandherd.cli.herd_session import Work
from sandherd.cli.login_name import login_name
from sandherd.cli.options import Format
from sandherd.cli.render.branches import OPEN
from sandherd.cli.status_line import StatusLine
from sandherd.client.branch_progress import until
from sandherd.client.herd import Herd
from sandherd.contracts.requests import BranchView
from sandherd.contracts.states import BranchState


def open_pull_request(name: str, output: Format, *, ready: bool, timeout: float) -> Work:
    """A function that opens a pull request and waits for it. The exit status is 1 if it is not open as requested."""

    async def work(herd: Herd) -> int:
        view = await find_branch(herd, name)
        await herd.open_pull_request(view.id, ready=ready, by=login_name())
        with StatusLine("waiting until it is open"):
            view = await until(herd.connection, partial(herd.branch, view.id), _opening_has_ended, timeout)
        show_result(view, output)
        return 0 if _is_open(view) and not view.pull_request_waits else 1

    return work


def merge(name: str, output: Format, *, wait: bool, timeout: float) -> Work:
    """A function that requests a merge of the branch's present commit, and waits for it if `wait`."""

    async def work(herd: Herd) -> int:
        view = await find_branch(herd, name)
        view = await herd.merge_branch(view.id, commit=view.commit, by=login_name())
        if wait:
            with StatusLine("waiting until it is merged"):
                view = await until(herd.connection, partial(herd.branch, view.id), _merge_has_ended, timeout)
        show_result(view, output)
        return 0 if _is_merged(view) or not wait else 1

    return work


def _is_open(view: BranchView) -> bool:
    return view.pull_request is not None and view.pull_request.state == OPEN


def _opening_has_ended(view: BranchView) -> bool:
    """Whether the pull request is open as requested, or can't be opened because its commit is not pushed."""
    return not view.pull_request_waits or _is_unpushed(view)


def _is_unpushed(view: BranchView) -> bool:
    return view.pushed_commit != view.commit and not view.pushing and not view.saving


def _is_merged(view: BranchView) -> bool:
    merged = view.pull_request is not None and view.pull_request.state == "merged"
    return merged or view.state is BranchState.MERGED


def _merge_has_ended(view: BranchView) -> bool:
    if _is_merged(view) or view.state is not BranchState.LIVE or _is_unpushed(view):
        return True
    queued = view.pull_request is not None and view.pull_request.queued
    return not view.pull_request_waits and not queued
