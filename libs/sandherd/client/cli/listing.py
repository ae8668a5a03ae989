"""What the groups of commands have in common: a list, one thing with all that is known of it, and something asked."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sandherd.client.cli.options import Format
from sandherd.client.terminal_text import put

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

Find = Callable[["Herd"], Awaitable[Any]]
Row = Callable[[Any], list[object]]


def show_list(
    ctx: typer.Context,
    find: Find,
    row: Row,
    *,
    key: str,
    header: Sequence[str],
    project: str | None,
    output: Format,
    operator: bool = False,
) -> int:
    """A page of a list, as a table or as one document. `key` is what the items are called in an answer."""
    from sandherd.client.cli.printing import answer

    async def work(herd: "Herd") -> int:
        found = await find(herd)
        items = found.items if hasattr(found, "origin") else getattr(found, key)
        named = {key: items, "next_cursor": found.next_cursor}
        document = named | {"from": found.origin} if hasattr(found, "origin") else named
        answer(output, document, header, [row(item) for item in items])
        return 0

    return _talk(ctx, work, project=project, operator=operator)


def show_one(ctx: typer.Context, find: Find, *, project: str | None, output: Format) -> int:
    """One thing, with all that is known of it."""
    from sandherd.client.cli.printing import document, facts

    async def work(herd: "Herd") -> int:
        found = await find(herd)
        if output is Format.JSON:
            document(found)
        else:
            facts(dict(found))
        return 0

    return _talk(ctx, work, project=project)


def ask_for(ctx: typer.Context, find: Find, give: Find, *, what: tuple[str, str, str], **options: Any) -> int:
    """Give a command about a thing, saying how it stood. `what` is the verb, its kind and its name."""
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import standing

    verb, kind, name = what

    async def work(herd: "Herd") -> int:
        state = await standing(find(herd))
        await give(herd)
        if options["output"] is Format.JSON:
            document({kind: name, "asked": verb, "was": state})
        else:
            put(f"asked to {verb} {name}, which was {state or 'not to be looked at: its services are away'}")
        return 0

    return _talk(ctx, work, project=options["project"])


def _talk(ctx: typer.Context, work: Find, *, project: str | None, operator: bool = False) -> int:
    from sandherd.client.cli.talking import talk, talk_as_operator

    return (talk_as_operator if operator else talk)(ctx, work, project=project)
