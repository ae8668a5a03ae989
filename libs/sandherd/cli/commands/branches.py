"""`sandherd branches`: list, show, fetch, push, pr, merge, delete, diff."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import show_list
from sandherd.cli.completion import branch_names, task_names
from sandherd.cli.options import Cursor, Format, Limit, NamelessOutput, Output, Project, example, group
from sandherd.cli.parse.durations import WaitTime
from sandherd.cli.render.branches import HEADER, row
from sandherd.contracts.states import BranchState

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import BranchList

app = group("Branches that tasks work on: list, show, fetch, push, pr, merge, delete, diff.", "sandherd branches list")
_NAME = "feature/fix-the-failing-test"
_TASK = "task-01kahc5x3tf8b9n2m4r6v8w0ya"


def _checked_branch(name: str | None) -> str | None:
    from sandherd.client.errors import validated
    from sandherd.contracts.requests import ListBranches

    return None if name is None else validated(ListBranches, branch=name).branch


def _checked_task(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "task")


BranchArgument = Annotated[
    str,
    typer.Argument(
        metavar="BRANCH|TASK",
        help="Name of a branch, its id or a beginning of its id (`br-` and at least 6 digits), or one of its tasks.",
        callback=_checked_branch,
        autocompletion=branch_names,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not prompt for confirmation.")]


@app.command(
    "list",
    epilog=example(
        "sandherd branches list",
        "sandherd branches list --state live -o json",
        f"sandherd branches list --task {_TASK}",
    ),
)
def list_branches(
    ctx: typer.Context,
    *,
    state: Annotated[
        list[BranchState] | None, typer.Option("--state", help="Only branches in this state; repeatable.")
    ] = None,
    task: Annotated[
        str | None,
        typer.Option(
            "--task",
            metavar="TASK",
            help="Only the branch of this task.",
            callback=_checked_task,
            autocompletion=task_names,
        ),
    ] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List the project's branches, the last changed first; `-o name` prints their ids.

    PUSHED is `approve` if a user has to approve changed paths first, and `pending` while the branch is saved or pushed.
    """

    async def find(herd: "Herd") -> "BranchList":
        from sandherd.cli.name_prefixes import full_name

        name = None if task is None else await full_name(herd, task, "task")
        return await herd.branches(limit=limit, cursor=cursor, task=name, states=state or [])

    return show_list(
        ctx, find, row, key="branches", header=HEADER, name=lambda cells: str(cells[-1]), project=project, output=output
    )


@app.command("show", epilog=example(f"sandherd branches show {_NAME}", f"sandherd branches show {_TASK} -o json"))
def show_branch(
    ctx: typer.Context, branch: BranchArgument, project: Project = None, output: Output = Format.TABLE
) -> int:
    """Show one branch: its saved and pushed commits, what prevents its progress, and the command to continue."""
    from sandherd.cli import branch_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, branch_output.show(branch, output), project=project)


@app.command(
    "fetch", epilog=example(f"sandherd branches fetch {_NAME}", f"sandherd branches fetch {_TASK} --into ../web")
)
def fetch_branch(
    ctx: typer.Context,
    branch: BranchArgument,
    *,
    into: Annotated[
        str, typer.Option("--into", metavar="PATH", help="Folder in the local repository.", show_default=True)
    ] = ".",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Fetch a branch into a local git repository, as a branch of the same name.

    The work tree and the branch that is checked out are not changed. An existing branch is only fast-forwarded. The
    commits are checked first, and nothing in them is executed.
    """
    from sandherd.cli import branch_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, branch_output.fetch(branch, into, output), project=project)


@app.command(
    "push", epilog=example(f"sandherd branches push {_NAME}", f"sandherd branches push {_NAME} --approve-paths")
)
def push_branch(  # one parameter per option
    ctx: typer.Context,
    branch: BranchArgument,
    *,
    approve_paths: Annotated[
        bool,
        typer.Option(
            "--approve-paths", help="Approve the changed paths that need a user's approval; an earlier push shows them."
        ),
    ] = False,
    yes: Yes = False,
    timeout: WaitTime = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Push a branch to its repository now, also after a refusal, and wait until it is pushed.

    The exit status is 1 if it is not pushed.
    """
    from sandherd.cli import branch_output
    from sandherd.cli.herd_session import run_with_herd

    work = branch_output.push(branch, output, approve_paths=approve_paths, yes=yes, timeout=timeout)
    return run_with_herd(ctx, work, project=project)


@app.command("pr", epilog=example(f"sandherd branches pr {_NAME}", f"sandherd branches pr {_NAME} --ready"))
def open_pull_request(  # one parameter per option
    ctx: typer.Context,
    branch: BranchArgument,
    *,
    ready: Annotated[
        bool, typer.Option("--ready", help="Make the pull request ready for review; without this option it is a draft.")
    ] = False,
    timeout: WaitTime = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Push the branch, open or update its pull request now, and wait for the result.

    This is also possible after a refusal, or after a user closed it. The exit status is 1 if it is not open.
    """
    from sandherd.cli import pull_request_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(
        ctx, pull_request_output.open_pull_request(branch, output, ready=ready, timeout=timeout), project=project
    )


@app.command("merge", epilog=example(f"sandherd branches merge {_NAME}", f"sandherd branches merge {_NAME} --wait"))
def merge_branch(  # one parameter per option
    ctx: typer.Context,
    branch: BranchArgument,
    *,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait until the branch is merged, or the merge is refused.")
    ] = False,
    timeout: WaitTime = 3600.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Merge the branch's pull request at its present commit when the forge permits it, whatever its merge policy.

    If necessary, it is opened and made ready for review first. With `--wait`, the exit status is 1 unless it is merged.
    """
    from sandherd.cli import pull_request_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, pull_request_output.merge(branch, output, wait=wait, timeout=timeout), project=project)


@app.command(
    "delete", epilog=example(f"sandherd branches delete {_NAME}", f"sandherd branches delete {_NAME} --here --yes")
)
def delete_branch(
    ctx: typer.Context,
    branch: BranchArgument,
    *,
    here: Annotated[
        bool, typer.Option("--here", help="Delete the branch in the herd only, not in its repository.")
    ] = False,
    yes: Yes = False,
    timeout: WaitTime = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Delete a branch in the herd, and in its repository if it was pushed, and wait until it is deleted.

    Prompts for confirmation if the branch has commits. The exit status is 1 if it could not be deleted.
    """
    from sandherd.cli import branch_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(
        ctx, branch_output.delete(branch, output, here=here, yes=yes, timeout=timeout), project=project
    )


@app.command("diff", epilog=example(f"sandherd branches diff {_NAME}", f"sandherd branches diff {_TASK}"))
def diff_branch(
    ctx: typer.Context, branch: BranchArgument, project: Project = None, output: NamelessOutput = Format.TABLE
) -> int:
    """Show the diff between a branch and its base commit.

    In a pipe or a file, the diff is a patch for `git apply`.
    """
    from sandherd.cli import branch_output
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, branch_output.diff(branch, output), project=project)
