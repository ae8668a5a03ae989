"""`sandherd subscriptions`: create, list, delete. Durable subscriptions of programs to a project's events."""

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from sandherd.cli.command_templates import show_one
from sandherd.cli.options import CreateProject, Format, Output, Project, example, group
from sandherd.cli.parse.start_positions import entity_name, event_types, start_position
from sandherd.client.terminal_text import write_text
from sandherd.plurals import pluralize

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import Subscription

app = group("Durable subscriptions to a project's events: create, list, delete.", "sandherd subscriptions list")
_COMMANDS: Final = {
    "not_found": "with `sandherd subscriptions list`",
    "refused": "with `sandherd subscriptions list`, then `sandherd subscriptions delete`",
}
"""Commands for the remedies of refusals, by code. The service does not name commands, as it has other clients."""
_REMEDY_PHRASES: Final = {
    "set `update` to change it": "change it with --update",
    "delete it first": "delete it first (`sandherd subscriptions delete`)",
}
"""Phrases in the remedies of refusals, and their replacements on the command line."""
HEADER = ("NAME", "CONSUMER", "TYPES", "WAITING", "NOT ACKNOWLEDGED", "LAST READ", "SINCE")


def _checked_name(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "name", remedy="see the existing ones with `sandherd subscriptions list`")


Name = Annotated[str, typer.Argument(metavar="NAME", help="A subscription's name.", callback=_checked_name)]


@app.command(
    "create",
    epilog=example(
        "sandherd subscriptions create alerts --type task.failed --type monitor",
        "sandherd subscriptions create copy --from all",
        "sandherd subscriptions create alerts --about task-one --from 2h --update",
    ),
)
def create_subscription(  # noqa: PLR0913  # one parameter for each option
    ctx: typer.Context,
    name: Name,
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="Only these event types, such as agent.tool_use or agent; repeatable.",
        ),
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="new|all|SEQ|TIME",
            help="First event: new events, the oldest event, a stream sequence, or a time: 2h or 7d ago, or ISO 8601.",
        ),
    ] = "new",
    entities: Annotated[
        list[str] | None,
        typer.Option("--about", metavar="NAME", help="Only events about this task or sandbox; repeatable."),
    ] = None,
    update: Annotated[
        bool,
        typer.Option("--update", help="Change types and names of an existing subscription, which keeps its position."),
    ] = False,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Create a durable subscription to the project's events for a program.

    The program receives events with a subscriber's credential and acknowledges each one; unacknowledged events are
    redelivered. To create the same subscription again changes nothing, and keeps its position.
    """
    event_type_filter, position = event_types(kinds or []), start_position(start)
    about = [entity_name(entity) for entity in entities or []]

    def subscribe(herd: "Herd") -> "Awaitable[Subscription]":
        return with_commands(
            herd.subscribe(name, types=event_type_filter, start=position, entities=about, update=update)
        )

    return show_one(ctx, subscribe, project=project, output=output, create=create)


@app.command("list", epilog=example("sandherd subscriptions list", "sandherd subscriptions list -o json"))
def list_subscriptions(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the project's subscriptions, with the numbers of their waiting events.

    LAST READ is the time when the last event was delivered or acknowledged; it is `-` if that was before the last start
    of the broker. NOT ACKNOWLEDGED includes events that a reader has returned: the next reader gets them first.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_list

    async def work(herd: "Herd") -> int:
        subscriptions = await herd.subscriptions()
        print_list(output, subscriptions, HEADER, [_row(subscription) for subscription in subscriptions.subscriptions])
        return 0

    return run_with_herd(ctx, work, project=project)


@app.command("delete", epilog=example("sandherd subscriptions delete alerts"))
def delete_subscription(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Delete a subscription and its position."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_document

    async def work(herd: "Herd") -> int:
        result = await with_commands(herd.unsubscribe(name))
        if output.is_json:
            print_document(output, result)
        else:
            write_text(
                f"subscription {name} is deleted; {pluralize(result.waiting, 'event was', 'events were')} waiting"
            )
        return 0

    return run_with_herd(ctx, work, project=project)


async def with_commands(reply: "Awaitable[Any]") -> Any:
    """Await a reply. Raises `HerdError` for a refusal, with the commands for its remedy."""
    from sandherd.client.errors import HerdError

    try:
        return await reply
    except HerdError as error:
        problem = error.problem
        if problem.remedy is None:
            raise
        remedy = problem.remedy
        for phrase, command in _REMEDY_PHRASES.items():
            remedy = remedy.replace(phrase, command)
        if problem.code in _COMMANDS:
            remedy = f"{remedy} ({_COMMANDS[problem.code]})"
        raise HerdError(problem.model_copy(update={"remedy": remedy})) from None


def _row(subscription: "Subscription") -> list[object]:
    types = ", ".join(subscription.types) or "all"
    types += f" about {', '.join(subscription.entities)}" if subscription.entities else ""
    last_read = (
        "now"
        if subscription.is_read
        else None
        if subscription.active_at == subscription.created_at
        else subscription.active_at
    )
    return [
        subscription.name,
        subscription.consumer,
        types,
        subscription.waiting,
        subscription.unacknowledged,
        last_read,
        subscription.created_at,
    ]
