"""`sandherd approvals`: list, grant, deny."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.listing import show_list
from sandherd.client.cli.options import (
    Cursor,
    Format,
    Limit,
    Output,
    Project,
    SandboxName,
    example,
    group,
    safe_sandbox,
)
from sandherd.client.terminal_text import put
from sandherd.contracts.states import ApprovalState

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import ApprovalView

app = group("What agents ask leave for: list, grant, deny.", "sandherd approvals list")
HEADER = ("SANDBOX", "APPROVAL", "STATE", "TOOL", "INPUT", "WHY", "ASKED", "EXPIRES")
HEADER_ALL = (*HEADER, "DECIDED", "BY", "THE AGENT HAS IT")
_APPROVAL = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya toolu_01A09q90qw90lq"

Approval = Annotated[str, typer.Argument(metavar="APPROVAL", help="Its name, as `approvals list` shows it.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why, for the agent to read.")]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who answers; else your login's name.")]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0.1)]


@app.command("list", epilog=example("sandherd approvals list", "sandherd approvals list --all -o json"))
def list_approvals(  # one parameter per option
    ctx: typer.Context,
    *,
    sandbox: Annotated[
        str | None, typer.Option("--sandbox", metavar="NAME", help="Only of this one.", callback=safe_sandbox)
    ] = None,
    state: Annotated[ApprovalState, typer.Option("--state", help="Only in this state.")] = ApprovalState.PENDING,
    every: Annotated[bool, typer.Option("--all", help="Also what is decided.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """What waits for a person's leave, newest first, each with all that the agent would do."""
    wanted = None if every else state
    decided = wanted is not ApprovalState.PENDING
    return show_list(
        ctx,
        lambda herd: herd.approvals(sandbox=sandbox, state=wanted, limit=limit, cursor=cursor),
        lambda view: _row(view) + (_decision(view) if decided else []),
        key="approvals",
        header=HEADER_ALL if decided else HEADER,
        project=project,
        output=output,
    )


@app.command("grant", epilog=example(f"sandherd approvals grant {_APPROVAL}"))
def grant_approval(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxName,
    approval: Approval,
    *,
    reason: Reason = None,
    by: By = None,
    timeout: Timeout = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Let an agent do what it asks for, and wait until it knows.

    The first answer counts. The exit status is 1 if this one does not.
    """
    return _answer(ctx, sandbox, approval, True, reason=reason, by=by, timeout=timeout, project=project, output=output)


@app.command("deny", epilog=example(f'sandherd approvals deny {_APPROVAL} --reason "use the test database"'))
def deny_approval(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxName,
    approval: Approval,
    *,
    reason: Reason = None,
    by: By = None,
    timeout: Timeout = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Forbid an agent what it asks for, and wait until it knows.

    The first answer counts. The exit status is 1 if this one does not.
    """
    return _answer(ctx, sandbox, approval, False, reason=reason, by=by, timeout=timeout, project=project, output=output)


def _answer(  # noqa: PLR0913  # the options of both commands
    ctx: typer.Context,
    sandbox: str,
    approval: str,
    granted: bool,  # noqa: FBT001  # the two commands are named after it
    *,
    reason: str | None,
    by: str | None,
    timeout: float,
    project: str | None,
    output: Format,
) -> int:
    from sandherd.client import approving
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import talk

    command = approving.answer(sandbox, approval, granted=granted, reason=reason, by=by or _login())

    async def work(herd: "Herd") -> int:
        found = await approving.give(herd.connection, command, timeout)
        if output is Format.JSON:
            told = {"message": found.message, "state": found.state, "delivery_ms": found.delivery_ms}
            document({"sandbox": sandbox, "approval_id": approval, "granted": granted} | told)
        else:
            put(f"{approval} of {sandbox} is {'granted' if granted else 'denied'}, and the agent knows it")
        return 0

    return talk(ctx, work, project=project)


def _login() -> str | None:
    """Who answers, as this machine knows them."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in a container
        return None


def _row(view: "ApprovalView") -> list[object]:
    return [
        view.sandbox,
        view.approval_id,
        view.state,
        view.tool,
        view.input,
        view.reason,
        view.requested_at,
        view.expires_at,
    ]


def _decision(view: "ApprovalView") -> list[object]:
    has_it = f"{view.answer_state}: {view.answer_reason}" if view.answer_reason else view.answer_state
    return [view.decided_at, view.decided_by or view.outcome, has_it]
