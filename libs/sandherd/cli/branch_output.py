"""Shows branches, and the result of a followed task on its branch."""

import shlex
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Final

import typer

from sandherd.cli.branch_names import find_branch
from sandherd.cli.herd_session import Work
from sandherd.cli.login_name import login_name
from sandherd.cli.options import Format
from sandherd.cli.render import branches, console
from sandherd.cli.status_line import StatusLine
from sandherd.cli.stderr import print_error
from sandherd.client.branch_progress import until
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.terminal_text import prompt_for_confirmation, write_text
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import BranchView
from sandherd.contracts.states import BranchState

SAVING_SECONDS: Final = 120.0
"""Seconds to wait until a task's last commits are checked and saved."""
PUSHING_SECONDS: Final = 15.0
"""Seconds to wait for the push after that. A push to a repository that does not respond is retried for hours."""
_DIFF_COMMAND: Final = "sandherd branches diff"


async def show_saved_branch(herd: Herd, task: str, output: Format) -> None:
    """Wait until the branch of an ended task is saved, and show it. JSON formats have only events, not the branch."""
    with StatusLine("saving the branch"):
        try:
            view = await _wait_until_saved(herd, task)
        except HerdError as error:
            if error.problem.code is not Code.NOT_FOUND:
                print_error(f"the branch of {task} is not known: {error.line}")
            return
    if output.is_text:
        _show_summary(view)


async def _wait_until_saved(herd: Herd, task: str) -> BranchView:
    """Wait until the branch of a task is saved, and then until it is pushed or `PUSHING_SECONDS` are over."""
    find = partial(herd.branch, task)
    view = await until(herd.connection, find, lambda current: not current.saving, SAVING_SECONDS)
    if not view.pushing:
        return view
    return await until(herd.connection, find, lambda current: not current.pushing, PUSHING_SECONDS)


def show(name: str, output: Format) -> Work:
    """A function that shows one branch, with what prevents its progress."""

    async def work(herd: Herd) -> int:
        _show_one(await find_branch(herd, name), output)
        return 0

    return work


def fetch(name: str, into: str, output: Format) -> Work:
    """A function that fetches a branch into a local repository."""

    async def work(herd: Herd) -> int:
        from sandherd.cli.file_copy import ProgressBar  # only needed with files

        view = await find_branch(herd, name)
        with ProgressBar(view.branch) as bar:
            fetched = await herd.fetch_branch(view.id, into, on_progress=bar.move)
        if output.is_json:
            document = {"branch": fetched.branch, "commit": fetched.commit, "repository": str(fetched.repository)}
            console.print_document(output, document | {"previous": fetched.previous, "changed": fetched.changed})
        elif output is Format.NAME:
            write_text(fetched.branch)
        else:
            verb = "is at" if fetched.changed else "already has"
            write_text(
                f"{fetched.branch} in {fetched.repository} {verb} {fetched.commit[:12]}: {branches.changes(view)}"
            )
            branch = shlex.quote(fetched.branch)
            compare = f"git diff {shlex.quote(view.base)}...{branch}"
            write_text(f"compare it with `{compare}`; use it with `git merge {branch}`")
        return 0

    return work


def push(name: str, output: Format, *, approve_paths: bool, yes: bool, timeout: float) -> Work:
    """A function that pushes a branch and waits for the result. The exit status is 1 if the branch is not pushed."""

    async def work(herd: Herd) -> int:
        view = await find_branch(herd, name)
        if approve_paths and not view.approve:
            raise _no_paths_shown(view)
        if approve_paths and not yes:
            _confirm(f"these paths of {view.branch} need approval:", view.approve, "Approve them, and push?")
        await herd.push_branch(view.id, approved_commit=view.commit if approve_paths else None, by=login_name())
        with StatusLine("waiting until it is pushed"):
            view = await until(herd.connection, partial(herd.branch, view.id), _push_has_ended, timeout)
        show_result(view, output)
        return 0 if view.pushed_commit == view.commit else 1

    return work


def _no_paths_shown(view: BranchView) -> HerdError:
    """The error for an approval while no path needs one. Such paths are known only after an attempt to push."""
    return HerdError.of(
        Code.CONFLICT,
        f"no paths of {view.branch} at {view.commit[:12]} are waiting for approval",
        field="approve_paths",
        remedy="push it without --approve-paths: paths that need approval are shown then",
    )


def _push_has_ended(view: BranchView) -> bool:
    return view.pushed_commit == view.commit or not view.pushing


def delete(name: str, output: Format, *, here: bool, yes: bool, timeout: float) -> Work:
    """A function that deletes a branch and waits for that. It prompts for confirmation if the branch has commits."""

    async def work(herd: Herd) -> int:
        view = await find_branch(herd, name)
        if view.commits and not yes:
            stays = here and view.pushed_commit == view.commit
            effect = "its commits stay in the repository" if stays else "its commits are lost"
            _confirm(f"{branches.summary(view)}; {effect}", [], f"Delete {view.branch}?")
        await herd.delete_branch(view.id, where="here" if here else "everywhere", by=login_name())
        with StatusLine("waiting until it is deleted"):
            deleted = await until(herd.connection, partial(herd.branch, view.id), _deletion_has_ended(view), timeout)
        if output.is_json or output is Format.NAME:
            _show_one(deleted, output)
        else:
            problem = f": {deleted.problem}" if deleted.problem else ""
            write_text(" ".join(f"{deleted.branch} is {deleted.state}{problem}".split()))
        return 0 if deleted.state is BranchState.DELETED else 1

    return work


def _deletion_has_ended(before: BranchView) -> Callable[[BranchView], bool]:
    """Whether a branch is deleted, or has another problem than before the request."""
    return lambda view: view.state is BranchState.DELETED or view.problem not in {None, before.problem}


def diff(name: str, output: Format, command: str = _DIFF_COMMAND) -> Work:
    """A function that shows the diff of a branch from its base. A terminal gets it without control characters."""

    async def work(herd: Herd) -> int:
        view = await find_branch(herd, name)
        with tempfile.TemporaryFile() as patch:
            await herd.branch_diff(view.id, patch)
            patch.seek(0)
            from sandherd.cli import folder_diffs  # only a diff needs it

            folder_diffs.show(patch, view.branch, output, kind="branch", command=command)
        return 0

    return work


def _show_one(view: BranchView, output: Format) -> None:
    if output.is_json:
        console.print_document(output, view)
    elif output is Format.NAME:
        write_text(view.id)
    else:
        console.print_facts(branches.facts_of(view))
        _write_lines(branches.next_steps(view))


def show_result(view: BranchView, output: Format) -> None:
    """Show the state of a branch: all fields as JSON, only its id for `-o name`, else a summary and the next steps."""
    _show_one(view, output) if output.is_json or output is Format.NAME else _show_summary(view)


def _show_summary(view: BranchView) -> None:
    _write_lines([branches.summary(view), *branches.next_steps(view)])


def _write_lines(lines: list[str]) -> None:
    for line in lines:
        write_text(" ".join(line.split()))


def _confirm(message: str, paths: list[str], question: str) -> None:
    """Prompt for confirmation. Raises `HerdError` without a terminal, and `typer.Abort` unless the user agrees."""
    if not sys.stdin.isatty():
        raise HerdError.of(Code.INVALID_FIELD, message.rstrip(":"), field="yes", remedy="agree with --yes")
    write_text(message, error=True)
    for path in paths:
        write_text(f"  {path}", error=True)
    if not prompt_for_confirmation(question):
        raise typer.Abort
