"""`sandherd history verify`: whether the tables of the history are what its events result in."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import all_names
from sandherd.cli.options import Format, NamelessOutput, Project, example, group, safe_sandbox

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

app = group("The history: compare its tables with its events.", "sandherd history verify")


@app.command("verify", epilog=example("sandherd history verify", "sandherd history verify -o json"))
def verify(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SANDBOX]",
            help="One sandbox, with its task [default: all of the project].",
            callback=safe_sandbox,
            autocompletion=all_names,
        ),
    ] = None,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Compare the tables of tasks, sandboxes, messages, approvals and sources with the events, and list differences.

    The exit status is 1 if there is one. `sandherd audit` checks whether events are missing.
    """
    from sandherd.cli.render import verification
    from sandherd.cli.session import talk

    async def work(herd: "Herd") -> int:
        return await verification.show(herd, name, output)

    return talk(ctx, work, project=project, activity="verifying")
