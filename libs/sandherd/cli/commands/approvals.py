"""`sandherd approvals`: list, grant, deny."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.cli.command_templates import show_list
from sandherd.cli.options import Cursor, Format, Limit, Output, Project, SandboxOrTask, checked_sandbox, example, group
from sandherd.cli.parse.durations import HALF_A_MINUTE, WaitTime
from sandherd.cli.render.table import Column
from sandherd.client.terminal_text import write_text
from sandherd.contracts.states import ApprovalState

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import ApprovalView

app = group("Pending approval requests: list, grant, deny.", "sandherd approvals list")
HEADER = (
    "SANDBOX",
    "APPROVAL",
    "STATE",
    "TOOL",
    "INPUT",
    Column("WHY", 2),
    Column("ASKED", 4),
    Column("EXPIRES", 3),
)
HEADER_ALL = (*HEADER, Column("DECIDED", 1), Column("BY", 1), Column("REASON", 1), Column("DELIVERED", 1))
_APPROVAL = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya apr-01kahc7m2qv4d8n6s3t5w9x1yb"

Approval = Annotated[str, typer.Argument(metavar="APPROVAL", help="Approval id, as shown by `approvals list`.")]
Reason = Annotated[
    str | None,
    typer.Option(
        "--reason", metavar="TEXT", help="Reason, shown to the agent (not with acp, which has no field for it)."
    ),
]
By = Annotated[
    str | None, typer.Option("--by", metavar="NAME", help="Name of the user who decides [default: your login name].")
]


@app.command("list", epilog=example("sandherd approvals list", "sandherd approvals list --all -o json"))
def list_approvals(  # one parameter per option
    ctx: typer.Context,
    *,
    sandbox: Annotated[
        str | None,
        typer.Option(
            "--sandbox",
            metavar="SANDBOX|TASK",
            help="Only for this sandbox, or for the live or last sandbox of this task.",
            callback=checked_sandbox,
        ),
    ] = None,
    state: Annotated[
        ApprovalState, typer.Option("--state", help="Only requests in this state.")
    ] = ApprovalState.PENDING,
    include_decided: Annotated[bool, typer.Option("--all", help="Also include decided requests.")] = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List pending approval requests, newest first, each with the full input of the tool call."""
    state_filter = None if include_decided else state
    with_decisions = state_filter is not ApprovalState.PENDING
    find = partial(_find, sandbox=sandbox, state=state_filter, limit=limit, cursor=cursor)
    return show_list(
        ctx,
        find,
        lambda view: _row(view) + (_decision(view) if with_decisions else []),
        key="approvals",
        header=HEADER_ALL if with_decisions else HEADER,
        name=lambda row: f"{row[0]} {row[1]}",
        project=project,
        output=output,
    )


@app.command("grant", epilog=example(f"sandherd approvals grant {_APPROVAL}"))
def grant_approval(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    approval: Approval,
    *,
    reason: Reason = None,
    by: By = None,
    timeout: WaitTime = HALF_A_MINUTE,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Grant an approval request, and wait until the agent has the answer.

    Only the first answer counts. The exit status is 1 if this answer came too late.
    """
    return _decide(ctx, sandbox, approval, True, reason=reason, by=by, timeout=timeout, project=project, output=output)


@app.command("deny", epilog=example(f'sandherd approvals deny {_APPROVAL} --reason "use the test database"'))
def deny_approval(  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    approval: Approval,
    *,
    reason: Reason = None,
    by: By = None,
    timeout: WaitTime = HALF_A_MINUTE,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Deny an approval request, and wait until the agent has the answer.

    Only the first answer counts. The exit status is 1 if this answer came too late.
    """
    return _decide(ctx, sandbox, approval, False, reason=reason, by=by, timeout=timeout, project=project, output=output)


async def _find(herd: "Herd", *, sandbox: str | None, **filters: Any) -> Any:
    from sandherd.cli.name_prefixes import sandbox_of

    name = None if sandbox is None else await sandbox_of(herd, sandbox)
    return await herd.approvals(sandbox=name, **filters)


def _decide(  # noqa: PLR0913  # the options of both commands
    ctx: typer.Context,
    sandbox: str,
    approval: str,
    granted: bool,  # noqa: FBT001  # the name of each command states it
    *,
    reason: str | None,
    by: str | None,
    timeout: float,
    project: str | None,
    output: Format,
) -> int:
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.login_name import login_name
    from sandherd.cli.name_prefixes import live_sandbox_of
    from sandherd.cli.render.console import print_document
    from sandherd.client import approvals

    approvals.answer(
        sandbox, approval, granted=granted, reason=reason, by=by or login_name()
    )  # raises errors of invalid names before connecting

    async def work(herd: "Herd") -> int:
        name = await live_sandbox_of(herd, sandbox)
        command = approvals.answer(name, approval, granted=granted, reason=reason, by=by or login_name())
        answer = await approvals.send_answer(herd.connection, command, timeout)
        if output.is_json:
            delivery = {"message": answer.message, "state": answer.state, "delivery_ms": answer.delivery_ms}
            print_document(output, {"sandbox": name, "approval_id": approval, "granted": granted} | delivery)
        else:
            write_text(f"{approval} of {name} is {'granted' if granted else 'denied'}, delivered to the agent")
        return 0

    return run_with_herd(ctx, work, project=project, activity="waiting until the agent has the answer")


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
    delivered = f"{view.answer_state}: {view.answer_reason}" if view.answer_reason else view.answer_state
    return [view.decided_at, view.decided_by or view.outcome, view.decision_reason, delivered]
