"""`sandherd up`, `down` and `status`: start, stop and show the stack on this machine."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.cli.options import Format, HerdLocation, Output, example
from sandherd.cli.render.table import Column
from sandherd.client.terminal_text import write_text
from sandherd.plurals import pluralize

if TYPE_CHECKING:
    from pathlib import Path

    from sandherd.progress_steps import OnStep
    from sandherd.stack import PartStatus, ShutdownResult, StackStatus

UP_EXAMPLE = example("sandherd up", "sandherd --home ./herd --config herd.yaml up", "sandherd up --nats 3")
DOWN_EXAMPLE = example("sandherd down")
STATUS_EXAMPLE = example("sandherd status", "sandherd status -o json")
HEADER = ("PART", "STATE", "PID", "RESTARTS", Column("HTTP", whole=True), Column("DETAIL", below=True))


def up(
    ctx: typer.Context,
    *,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until every part is ready.")] = True,
    nats: Annotated[
        int | None, typer.Option("--nats", metavar="N", help="Number of nats-servers: 1 or 3; cannot be changed later.")
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Start the local stack: broker, database and services.

    Running parts are not restarted. With three nats-servers, each stores all data, and one of them may fail.
    """
    module = local_stack()

    def work(home: "Path", on_step: "OnStep") -> Any:
        return module.stack.up(home, wait=wait, config=module.config_of(ctx), nats=nats, on_step=on_step)

    show_result = partial(_show, output=output, complete=wait, home_option=_home_option(ctx))
    return int(module.on_stack(ctx, work, show_result, activity="starting the supervisor"))


def down(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """Stop the local stack.

    Running agents are stopped, and their tasks fail (`stopped`). Stored data is available again after the next
    `sandherd up`, which also starts the pending tasks.
    """
    module = local_stack()

    def work(home: "Path", on_step: "OnStep") -> Any:
        return module.stack.down(home, on_step=on_step)

    return int(module.on_stack(ctx, work, partial(_show_shutdown, output=output), activity="stopping the stack"))


def status(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """Show the parts of the local stack, and how many approvals wait for a user.

    The exit status is 1 if a part is not ready.
    """
    module = local_stack()

    def show(stack_status: "StackStatus") -> int:
        approvals = module.pending_approvals(ctx) if stack_status.ready else None
        return _show(stack_status, output, complete=True, approvals=approvals, home_option=_home_option(ctx))

    return int(module.on_stack(ctx, lambda home, _: module.stack.status(home), show, activity="checking each part"))


def local_stack() -> Any:
    """The module `cli.local_stack`. Raises `HerdError` if only the client is installed."""
    try:
        from sandherd.cli import local_stack as module
    except ModuleNotFoundError as error:
        from sandherd.client.errors import HerdError
        from sandherd.contracts.errors import Code

        raise HerdError.of(
            Code.UNAVAILABLE,
            f"the stack is not installed here ({error.name} is missing)",
            remedy="install it with `pip install 'sandherd[stack]'`",
        ) from None
    return module


def _home_option(ctx: typer.Context) -> "Path | None":
    """The home that the command line names, or None."""
    return (ctx.find_object(HerdLocation) or HerdLocation()).home


def _show(
    stack_status: "StackStatus",
    output: Format,
    *,
    complete: bool,
    approvals: int | None = None,
    home_option: "Path | None" = None,
) -> int:
    from sandherd.cli.home_option import with_home
    from sandherd.cli.local_stack import plain_status
    from sandherd.cli.render.console import print_document, print_table
    from sandherd.cli.stderr import print_error

    if output.is_json:
        pending = {} if approvals is None else {"pending_approvals": approvals}
        print_document(output, plain_status(stack_status) | pending)
    elif output is Format.NAME:
        for part in stack_status.parts:
            write_text(part.name)
    else:
        write_text(
            f"{stack_status.phase}  {stack_status.home}"
            + (f"  {stack_status.nats_url}" if stack_status.nats_url else "")
        )
        if stack_status.api_url is not None and stack_status.parts:
            write_text(f"HTTP API  {stack_status.api_url}")
        if stack_status.parts:
            print_table(HEADER, [_row(part) for part in stack_status.parts])
        if approvals:
            write_text(
                f"agents wait for an answer to {pluralize(approvals, 'approval')}; see `sandherd approvals list`"
            )
    if stack_status.ready or not complete:
        return 0
    print_error(with_home(_problem(stack_status), home_option))
    return 1


def _show_shutdown(shutdown_result: "ShutdownResult", output: Format) -> int:
    from sandherd.cli.render.console import print_document
    from sandherd.cli.stderr import print_error

    if output.is_json:
        print_document(
            output,
            {
                "home": str(shutdown_result.home),
                "ended": shutdown_result.names,
                "sandboxes_left": shutdown_result.sandboxes_left,
            },
        )
    elif output is Format.NAME:
        for name in shutdown_result.names:
            write_text(name)
    else:
        write_text(
            f"stopped {', '.join(shutdown_result.names)}" if shutdown_result.was_running else "nothing was running"
        )
    if shutdown_result.sandboxes_left:
        print_error(f"sandboxes may still be running; {_remedy_for_sandboxes(shutdown_result.home)}")
    return 1 if shutdown_result.sandboxes_left else 0


def _remedy_for_sandboxes(home: "Path") -> str:
    from sandherd.lost_identity import lost_identity

    if lost := lost_identity(home):
        return f"{lost}; restore it from a backup, and try again"
    return f"see {home / 'logs' / 'spawner.log'}, and try again"


def _row(part: "PartStatus") -> list[object]:
    state = "ready" if part.ready else "running" if part.running else "down"
    return [part.name, state, part.pid, part.restarts, part.http, _warnings(part.detail)]


def _warnings(detail: str) -> str:
    """The lines of a part's report about itself that are not ok."""
    return "; ".join(line for line in detail.splitlines() if not line.endswith(": ok"))


def _problem(stack_status: "StackStatus") -> str:
    from sandherd.lost_identity import lost_identity_remedy

    if stack_status.lost:
        return f"{stack_status.lost}; {lost_identity_remedy(stack_status.home)}"
    if not any(part.running for part in stack_status.parts):
        return "the stack is not running; start it with `sandherd up`"
    if stack_status.phase == "unsupervised":
        return "the supervisor of the stack was killed; `sandherd up` starts a new one, and agents keep running"
    not_ready = [part.name for part in stack_status.parts if not part.ready]
    problem = f"{', '.join(not_ready)} not ready" if not_ready else f"the stack is {stack_status.phase}"
    return f"{problem}; see the logs in {stack_status.home / 'logs'}, and check with `sandherd doctor`"
