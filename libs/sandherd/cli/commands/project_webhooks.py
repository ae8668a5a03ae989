"""`sandherd webhooks` that the herd delivers: create, list, show, test, rotate, replay, delete."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import show_change, show_one
from sandherd.cli.options import CreateProject, Format, Output, Project, example
from sandherd.cli.parse.start_positions import entity_name, event_types, start_position

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import Webhook, WebhookTested, WebhookWithSecret

HEADER = ("NAME", "URL", "TYPES", "STATE", "POSITION", "WAITING", "DROPPED", "DEAD", "ACCEPTED", "PROBLEM")
_FROM = "First event: new events, the oldest event, a stream sequence, or a time: 2h or 7d ago, or ISO 8601."


def _checked_name(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "name", remedy="see the existing ones with `sandherd webhooks list`")


Name = Annotated[str, typer.Argument(metavar="NAME", help="A webhook's name.", callback=_checked_name)]


def create_webhook(  # noqa: PLR0913  # one parameter for each option
    ctx: typer.Context,
    name: Name,
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the receiver, with https.")],
    *,
    kinds: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Only these event types, such as task.failed or task; repeatable."),
    ] = None,
    entities: Annotated[
        list[str] | None,
        typer.Option("--about", metavar="NAME", help="Only events about this task or sandbox; repeatable."),
    ] = None,
    start: Annotated[str, typer.Option("--from", metavar="new|all|SEQ|TIME", help=_FROM)] = "new",
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Create a webhook, which sends the project's events to a URL, and print the secret of its signatures.

    The secret is not shown again. Each event is sent until the receiver accepts it (2xx), in order for each task and
    sandbox, at least once and always with the same id.
    """
    from sandherd.cli.herd_session import command_context
    from sandherd.client.context import holder

    types, position = event_types(kinds or []), start_position(start)
    about = [entity_name(entity) for entity in entities or []]
    credentials = command_context(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> "WebhookWithSecret":
        return await herd.create_webhook(name, url, types=types, start=position, entities=about, by=by)

    return show_change(ctx, work, lambda new: new.secret, project=project, output=output, create=create)


def list_webhooks(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the project's webhooks.

    Events up to the stream sequence POSITION are handled, except those that are WAITING. DROPPED is the number of
    events that were deleted from the stream before they could be sent.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_list

    async def work(herd: "Herd") -> int:
        webhooks = await herd.webhooks()
        print_list(output, webhooks, HEADER, [_row(webhook) for webhook in webhooks.webhooks])
        return 0

    return run_with_herd(ctx, work, project=project)


def show_webhook(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show a webhook with its dead letters, which are events that were not accepted in any attempt."""
    return show_one(ctx, lambda herd: herd.webhook(name), project=project, output=output)


def try_webhook(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Send a signed document of the type `webhook.test` once. The exit status is 1 if it is not accepted."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_document
    from sandherd.client.terminal_text import write_text

    async def work(herd: "Herd") -> int:
        test: WebhookTested = await herd.test_webhook(name)
        if output.is_json:
            print_document(output, test)
        else:
            write_text(f"{'accepted' if test.accepted else 'not accepted'}: {test.reason}")
        return 0 if test.accepted else 1

    return run_with_herd(ctx, work, project=project)


def rotate_secret(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Create a new secret for a webhook and print it. It is not shown again. The old secret also signs for a day."""

    async def work(herd: "Herd") -> "WebhookWithSecret":
        return await herd.rotate_webhook_secret(name)

    return show_change(ctx, work, lambda new: new.secret, project=project, output=output)


def replay_webhook(
    ctx: typer.Context,
    name: Name,
    *,
    start: Annotated[str | None, typer.Option("--from", metavar="new|all|SEQ|TIME", help=_FROM)] = None,
    dead: Annotated[bool, typer.Option("--dead-letters", help="Send the dead letters again.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Resume a disabled webhook; with --from or --dead-letters, also send events again."""
    position = None if start is None else start_position(start)

    async def work(herd: "Herd") -> "Webhook":
        return await herd.replay_webhook(name, start=position, dead_letters=dead)

    def description(webhook: "Webhook") -> str:
        return f"webhook {webhook.name} continues after {webhook.position}, with {webhook.waiting} waiting"

    return show_change(ctx, work, description, project=project, output=output)


def delete_webhook(ctx: typer.Context, name: Name, project: Project = None, output: Output = Format.TABLE) -> int:
    """Delete a webhook, its position and its secret."""
    return show_change(
        ctx,
        lambda herd: herd.delete_webhook(name),
        lambda webhook: f"webhook {webhook.name} is deleted",
        project=project,
        output=output,
    )


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module to the group `webhooks`."""
    create_example = "sandherd webhooks create alerts https://example.com/events --type task.failed --type approval"
    app.command("create", epilog=example(create_example))(create_webhook)
    app.command("list", epilog=example("sandherd webhooks list", "sandherd webhooks list -o json"))(list_webhooks)
    app.command("show", epilog=example("sandherd webhooks show alerts"))(show_webhook)
    app.command("test", epilog=example("sandherd webhooks test alerts"))(try_webhook)
    app.command("rotate", epilog=example("sandherd webhooks rotate alerts"))(rotate_secret)
    replay_examples = "sandherd webhooks replay alerts --from 2h", "sandherd webhooks replay alerts --dead-letters"
    app.command("replay", epilog=example(*replay_examples))(replay_webhook)
    app.command("delete", epilog=example("sandherd webhooks delete alerts"))(delete_webhook)


def _row(webhook: "Webhook") -> list[object]:
    types = ", ".join(webhook.types) or "all"
    types += f" about {', '.join(webhook.entities)}" if webhook.entities else ""
    return [
        *(webhook.name, webhook.url, types, webhook.state, webhook.position, webhook.waiting, webhook.dropped),
        *(webhook.dead, webhook.accepted_at, webhook.problem),
    ]
