"""`sandherd dead`: dead letters, which are messages that could not be handled. Clients read those of their project."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import show_list
from sandherd.cli.options import Cursor, Format, Limit, Output, Project, example, group
from sandherd.client.terminal_text import write_text

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import DeadLetter

app = group("Dead letters: list, show; for operators also requeue.", "sandherd dead list")
HEADER = ("NUMBER", "PROJECT", "SERVICE", "REASON", "SUBJECT", "BYTES", "SINCE", "WHY")


def _checked_service(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "service")


Service = Annotated[
    str | None, typer.Option("--service", metavar="NAME", help="Only from this service.", callback=_checked_service)
]
Number = Annotated[
    int, typer.Argument(metavar="NUMBER", help="Number of the dead letter, as shown by `dead list`.", min=1)
]


@app.command("list", epilog=example("sandherd dead list", "sandherd dead list --service event-ingest -o json"))
def list_dead(
    ctx: typer.Context,
    *,
    service: Service = None,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List dead letters, newest first.

    Without --project, it lists those of all projects that the credential permits. A client's credential is for one
    project.
    """
    return show_list(
        ctx,
        lambda herd: herd.dead_letters(service=service, limit=limit, cursor=cursor),
        _row,
        key="letters",
        header=HEADER,
        project=project,
        output=output,
        operator=True,
    )


@app.command("show", epilog=example("sandherd dead show 17"))
def show_dead(ctx: typer.Context, number: Number, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show one dead letter, with its payload."""
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.console import print_document, print_facts

    async def work(herd: "Herd") -> int:
        letter = await herd.dead_letter(number)
        if output.is_json:
            print_document(output, letter)
            return 0
        reason = letter.reason
        print_facts(
            dict(letter) | {"reason": reason.code, "field": reason.field, "why": reason.message, "payload": None}
        )
        write_text(f"\n{letter.payload or ''}")
        return 0

    return run_as_operator(ctx, work, project=project)


@app.command("requeue", epilog=example("sandherd dead requeue 17"))
def requeue_dead(ctx: typer.Context, number: Number, project: Project = None, output: Output = Format.TABLE) -> int:
    """Make the service retry a dead letter. If that succeeds, the dead letter is deleted."""
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.console import print_document
    from sandherd.cli.stderr import print_error

    async def work(herd: "Herd") -> int:
        result = await herd.requeue(number)
        if output.is_json:
            print_document(output, result)
        elif result.outcome == "done":
            write_text(f"dead letter {number} is handled")
        if result.outcome == "done":
            return 0
        print_error(
            f"dead letter {number}: {result.outcome}, {result.detail}; read it with `sandherd dead show {number}`"
        )
        return 1

    return run_as_operator(ctx, work, project=project)


def _row(letter: "DeadLetter") -> list[object]:
    from sandherd.contracts.subjects import project_of

    return [
        letter.number,
        project_of(letter.subject),
        letter.service,
        letter.reason.code,
        letter.subject,
        letter.size,
        letter.dead_at,
        letter.reason.message,
    ]
