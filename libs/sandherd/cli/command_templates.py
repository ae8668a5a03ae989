"""The common parts of commands that list items, show one, send a command about one, or change one."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import typer

from sandherd.cli.options import Format
from sandherd.client.terminal_text import write_text

if TYPE_CHECKING:
    from sandherd.cli.name_prefixes import Kind
    from sandherd.cli.render.table import Column
    from sandherd.client.herd import Herd

Find = Callable[["Herd"], Awaitable[Any]]
ActOn = Callable[["Herd", str], Awaitable[Any]]
"""An operation on the item with a name."""
Row = Callable[[Any], list[object]]


def show_list(  # noqa: PLR0913  # the parts of a list, and the options of its command
    ctx: typer.Context,
    find: Find,
    row: Row,
    *,
    key: str,
    header: "Sequence[str | Column]",
    name: Callable[[Sequence[object]], str] | None = None,
    project: str | None,
    output: Format,
    operator: bool = False,
    watch: Sequence[str] = (),
) -> int:
    """Show a page of a list, as a table or as one document. `key` is the field of the reply that has the items.

    `watch` names domains of events: after each event of these domains the list is shown again, until an interrupt.
    """
    from sandherd.cli.render.console import print_list
    from sandherd.cli.stderr import print_error

    if watch:
        from sandherd.cli.render.list_watch import watch_list

        watch_work = watch_list(find, row, key=key, header=header, output=output, domains=watch)
        return _run_work(ctx, watch_work, project=project, operator=operator)

    async def work(herd: "Herd") -> int:
        reply = await find(herd)
        items = reply.items if hasattr(reply, "origin") else getattr(reply, key)
        page = {key: items, "next_cursor": reply.next_cursor}
        document = page | {"from": reply.origin} if hasattr(reply, "origin") else page
        rows = [row(item) for item in items]
        print_list(output, document, header, rows, name=name or (lambda row: str(row[0])))
        if reply.next_cursor is not None and not output.shows_truncation:
            print_error(f"there are more {key}: continue with --cursor {reply.next_cursor}, or set a higher --limit")
        return 0

    return _run_work(ctx, work, project=project, operator=operator)


def show_one(  # the parts of an item, and the options of its command
    ctx: typer.Context,
    find: Find,
    *,
    key: str = "name",
    project: str | None,
    output: Format,
    create: bool = False,
    show: Callable[["Herd", Any], Awaitable[None]] | None = None,
) -> int:
    """Show one item with all its fields; `show` prints it as text, by default as a table. `key` is its name's field."""
    from sandherd.cli.render.console import print_document, print_facts

    async def work(herd: "Herd") -> int:
        item = await find(herd)
        if output.is_json:
            print_document(output, item)
        elif output is Format.NAME:
            write_text(str(getattr(item, key)))
        elif show is not None:
            await show(herd, item)
        else:
            print_facts(dict(item))
        return 0

    return _run_work(ctx, work, project=project, create=create)


def send_command(
    ctx: typer.Context, find: ActOn, send: ActOn, *, target: tuple[str, "Kind", str], **options: Any
) -> int:
    """Send a command about an item, and show the state that the item had before.

    `target` is the verb, the kind and the name of the item. `send` raises `HerdError` (`conflict`) for an ended item.
    """
    from sandherd.cli.herd_session import target_state
    from sandherd.cli.name_prefixes import full_name, live_sandbox_of, with_task_remedy
    from sandherd.cli.render.console import print_document
    from sandherd.client.errors import HerdError

    verb, kind, start = target

    async def work(herd: "Herd") -> int:
        name = await (live_sandbox_of(herd, start) if kind == "sandbox" else full_name(herd, start, kind))
        try:
            state = await target_state(find(herd, name))
            await send(herd, name)
        except HerdError as error:
            raise await with_task_remedy(herd, name, error) from None
        output = options["output"]
        if output.is_json:
            print_document(output, {kind: name, "asked": verb, "was": state})
        else:
            write_text(f"requested to {verb} {name} (state: {state or 'unknown, its services are unavailable'})")
        return 0

    return _run_work(ctx, work, project=options["project"])


def show_change(
    ctx: typer.Context,
    change: Find,
    describe: Callable[[Any], str],
    *,
    project: str | None,
    output: Format,
    create: bool = False,
    operator: bool = False,
    activity: str = "waiting until it has taken effect",
) -> int:
    """Make a change, wait until it has taken effect, and show the new state. Raises `HerdError` if it is refused."""
    from sandherd.cli.render.console import print_document

    async def work(herd: "Herd") -> int:
        view = await change(herd)
        if output.is_json:
            print_document(output, view)
        else:
            write_text(describe(view))
        return 0

    return _run_work(ctx, work, project=project, operator=operator, create=create, activity=activity)


def _run_work(ctx: typer.Context, work: Find, *, project: str | None, operator: bool = False, **options: Any) -> int:
    from sandherd.cli.herd_session import run_as_operator, run_with_herd

    if operator:
        return run_as_operator(ctx, work, project=project, create=options.get("create", False))
    return run_with_herd(ctx, work, project=project, **options)
