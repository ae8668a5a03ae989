"""`sandherd dead`: what could not be handled. For operators."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.listing import show_list
from sandherd.client.cli.options import Cursor, Format, Limit, Output, Project, example, group
from sandherd.client.terminal_text import put

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import DeadLetter

app = group("Dead letters, for operators: list, show, requeue.", "sandherd dead list")
HEADER = ("NUMBER", "PROJECT", "SERVICE", "REASON", "SUBJECT", "BYTES", "SINCE", "WHY")


def _safe_service(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "service")


Service = Annotated[
    str | None, typer.Option("--service", metavar="NAME", help="Only of this service.", callback=_safe_service)
]
Number = Annotated[int, typer.Argument(metavar="NUMBER", help="Its number, as `dead list` shows it.", min=1)]


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
    """Dead letters, newest first.

    Of all projects that the credential is for, unless one is named.
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
    """One dead letter, with what it said."""
    from sandherd.client.cli.printing import document, facts
    from sandherd.client.cli.talking import talk_as_operator

    async def work(herd: "Herd") -> int:
        letter = await herd.dead_letter(number)
        if output is Format.JSON:
            document(letter)
            return 0
        reason = letter.reason
        facts(dict(letter) | {"reason": reason.code, "field": reason.field, "why": reason.message, "payload": None})
        put(f"\n{letter.payload or ''}")
        return 0

    return talk_as_operator(ctx, work, project=project)


@app.command("requeue", epilog=example("sandherd dead requeue 17"))
def requeue_dead(ctx: typer.Context, number: Number, project: Project = None, output: Output = Format.TABLE) -> int:
    """Have the service that gave it up try it again. It leaves the dead letters when that succeeds."""
    from sandherd.client.cli.leaving import complain
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import talk_as_operator

    async def work(herd: "Herd") -> int:
        found = await herd.requeue(number)
        if output is Format.JSON:
            document(found)
        elif found.outcome == "done":
            put(f"dead letter {number} is handled")
        if found.outcome == "done":
            return 0
        complain(f"dead letter {number}: {found.outcome}, {found.detail}; read it with `sandherd dead show {number}`")
        return 1

    return talk_as_operator(ctx, work, project=project)


def project_of(subject: str) -> str | None:
    """The project that a message was about, by its subject; None for what is no subject of ours."""
    from sandherd.contracts.subjects import PREFIX

    kind, *rest = subject.removeprefix(f"{PREFIX}.").split(".")
    if not subject.startswith(f"{PREFIX}.") or not rest:
        return None
    # An event's subject begins with its project; a command's ends with it.
    return rest[0] if kind == "event" else rest[-1]


def _row(letter: "DeadLetter") -> list[object]:
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
