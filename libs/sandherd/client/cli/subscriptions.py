"""`sandherd subscriptions`: create, list, delete. A project's events, kept for a program until it takes them."""

from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from sandherd.client.cli.listing import show_one
from sandherd.client.cli.options import Format, Output, Project, example, group
from sandherd.client.terminal_text import put

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import Subscription

app = group("Events kept for a program until it takes them: create, list, delete.", "sandherd subscriptions list")
_BEGINNINGS: Final[dict[str, Literal["new", "all"]]] = {"new": "new", "all": "all"}
HEADER = ("NAME", "CONSUMER", "TYPES", "WAITING", "NOT ACKNOWLEDGED", "SINCE")


def _safe(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "name")


Name = Annotated[str, typer.Argument(metavar="NAME", help="A subscription's name.", callback=_safe)]


@app.command(
    "create",
    epilog=example(
        "sandherd subscriptions create alerts --type task.failed --type monitor",
        "sandherd subscriptions create copy --from all",
    ),
)
def create_subscription(
    ctx: typer.Context,
    name: Name,
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only these, as agent.tool_use or agent; again for more."),
    ] = None,
    start: Annotated[
        str, typer.Option("--from", metavar="new|all|SEQ", help="From now on, from the oldest, or from a place.")
    ] = "new",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Have the project's events kept for a program.

    It takes them with a subscriber's credential, and acknowledges each; what it does not comes again. The same
    subscription created twice is one, and keeps its place.
    """
    from sandherd.client.cli.choosing import types

    for kind in kinds or []:
        types([kind])  # raises for what is no event, before anything is sent
    begins = _start(start)
    wanted = [kind.removesuffix("*").removesuffix(".") for kind in kinds or []]
    return show_one(ctx, lambda herd: herd.subscribe(name, types=wanted, start=begins), project=project, output=output)


@app.command("list", epilog=example("sandherd subscriptions list", "sandherd subscriptions list -o json"))
def list_subscriptions(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """The project's subscriptions, and what waits in each."""
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.subscriptions()
        answer(output, found, HEADER, [_row(one) for one in found.subscriptions])
        return 0

    return talk(ctx, work, project=project)


@app.command("delete", epilog=example("sandherd subscriptions delete alerts"))
def delete_subscription(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Keep nothing for it any more, and forget how far it was."""
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.unsubscribe(name)
        if output is Format.JSON:
            document(found)
        else:
            put(f"subscription {name} is gone; {found.waiting} events waited for it")
        return 0

    return talk(ctx, work, project=project)


def _start(given: str) -> Literal["new", "all"] | int:
    """Where it begins. Raises `HerdError`."""
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    if given in _BEGINNINGS:
        return _BEGINNINGS[given]
    if given.isascii() and given.isdigit() and int(given):
        return int(given)
    raise HerdError.of(
        Code.INVALID_FIELD, f"--from {given[:40]!r} is no beginning", field="start", remedy="use new, all, or a place"
    )


def _row(one: "Subscription") -> list[object]:
    types = ", ".join(one.types) or "all"
    return [one.name, one.consumer, types, one.waiting, one.unacknowledged, one.created_at]
