"""`sandherd services logs`: shows the logs of the parts of the local stack."""

from typing import Annotated

import typer

from sandherd.cli.completion import part_names
from sandherd.cli.options import Follow, Format, NamelessOutput, example, group

app = group("Services of the local stack: logs.", "sandherd services logs spawner")


def _checked_service(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "service")


@app.command("logs", epilog=example("sandherd services logs spawner -n 50", "sandherd services logs nats --follow"))
def logs(
    ctx: typer.Context,
    service: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A part of `sandherd status`: spawner, event-ingest, monitor, message-relay, gateway, nats, postgres; "
            "also supervisor.",
            callback=_checked_service,
            autocompletion=part_names,
        ),
    ],
    *,
    follow: Follow = False,
    lines: Annotated[
        int, typer.Option("--lines", "-n", metavar="N", help="Maximum number of lines.", min=1, max=100_000)
    ] = 200,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the last lines of a service's log in the local stack. As JSON, one document per line.

    A document has the text of a line of the log; if that is JSON, `record` has its fields.

    With --follow it continues until it is interrupted. For a herd elsewhere, use `kubectl logs` or
    `docker compose logs`.
    """
    import asyncio

    from sandherd.cli import service_logs
    from sandherd.cli.commands.stack import local_stack
    from sandherd.cli.herd_session import command_context
    from sandherd.client.errors import HerdError

    try:
        local_stack()
    except HerdError as error:  # only the client is installed
        raise service_logs.no_logs_error(error.problem.message) from None
    return asyncio.run(service_logs.show(command_context(ctx), service, output, follow=follow, lines=lines))
