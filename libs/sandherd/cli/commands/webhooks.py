"""`sandherd webhooks`: secret, deliver, and the commands of `project_webhooks`.

The herd delivers the webhooks of a project; `deliver` runs the delivery of a subscription outside the herd.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.commands.project_webhooks import add_to
from sandherd.cli.options import Format, NamelessOutput, Project, example, group
from sandherd.cli.parse.durations import DefaultDuration, duration
from sandherd.client.terminal_text import write_text

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

app = group(
    "Webhooks: delivery of a project's events by the herd, or by a program of your own.", "sandherd webhooks list"
)
add_to(app)


def _checked_name(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "name", remedy="see the existing ones with `sandherd subscriptions list`")


_MAX_AGE = DefaultDuration(86_400)
_END_AFTER = DefaultDuration(5 * 86_400)


@app.command("secret", epilog=example("sandherd webhooks secret"))
def secret(*, output: NamelessOutput = Format.TABLE) -> int:
    """Print a new secret for `sandherd webhooks deliver`. Store it in a file that only you can read.

    The receiver also needs the secret. The herd does not store it. For a webhook of a project, `create` and `rotate`
    make the secret.
    """
    from sandherd.webhook_signatures import new_secret

    created = new_secret()
    if output.is_json:
        from sandherd.cli.render import console

        console.print_document(output, {"secret": created})
    else:
        write_text(created)
    return 0


@app.command(
    "deliver",
    epilog=example("sandherd webhooks deliver alerts https://example.com/events --secret-file secret"),
)
def deliver(  # noqa: PLR0913  # one parameter for each option
    ctx: typer.Context,
    subscription: Annotated[
        str, typer.Argument(metavar="NAME", callback=_checked_name, help="The durable subscription to deliver.")
    ],
    url: Annotated[str, typer.Argument(metavar="URL", help="Address of the receiver, with https.")],
    *,
    secret_file: Annotated[
        Path,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="File with a secret in each line. All secrets sign. It is read for each event.",
        ),
    ],
    dead: Annotated[
        Path | None,
        typer.Option("--dead-letters", metavar="FILE", help="Append events that are given up to this file."),
    ] = None,
    age: Annotated[
        float,
        typer.Option(
            "--max-age",
            metavar="DURATION",
            parser=duration,
            help="Time after the first attempt when an event is given up.",
        ),
    ] = _MAX_AGE,
    failing: Annotated[
        float,
        typer.Option(
            "--end-after",
            metavar="DURATION",
            parser=duration,
            help="End if the receiver accepts no event for this time.",
        ),
    ] = _END_AFTER,
    private: Annotated[
        bool, typer.Option("--permit-private", help="Permit http, and addresses that are not public.")
    ] = False,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Deliver the events of a subscription to a URL as signed webhooks, until interrupted.

    Each event is sent until the receiver accepts it (2xx), in order for each task and sandbox, at least once and always
    with the same id. A subscriber's credential is sufficient. Run it as a service: after a restart it continues.
    Events that are not accepted are reported in one line each: on standard error, or with `-o json|jsonl` on standard
    output.
    """
    from datetime import timedelta

    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render import console
    from sandherd.cli.stderr import print_error
    from sandherd.client.webhooks.addresses import checked_url
    from sandherd.client.webhooks.delivery import DeliveryLimits, WebhookDelivery, read_secrets
    from sandherd.client.webhooks.sender import Sender

    sender = Sender(checked_url(url, private=private), private=private)
    read_secrets(secret_file)
    report = (lambda text: console.print_line({"problem": text})) if output.is_json else print_error
    limits = DeliveryLimits(timedelta(seconds=age), timedelta(seconds=failing))

    async def work(herd: "Herd") -> int:
        delivery = WebhookDelivery(
            herd, subscription, sender, lambda: read_secrets(secret_file), dead, limits=limits, report=report
        )
        await delivery.run()
        return 0

    return run_with_herd(ctx, work, project=project)
