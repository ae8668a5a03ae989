"""`sandherd secrets`: set, list, delete. Values come from standard input, a file or a prompt, and are never shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import secret_names
from sandherd.cli.options import CreateProject, Format, Output, Project, example, group

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import SecretView

app = group("Named secrets of a project: set, list, delete.", "sandherd secrets list")
HEADER = ("NAME", "CREATED", "UPDATED", "BY", "TASKS", "READABLE")


def _checked_secret(name: str) -> str:
    from sandherd.client.named_secrets import checked_secret_name

    return checked_secret_name(name)


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME", help="Letters, digits, _ and -.", callback=_checked_secret, autocompletion=secret_names
    ),
]


@app.command(
    "set",
    epilog=example(
        "sandherd secrets set anthropic-key",
        "printenv ANTHROPIC_API_KEY | sandherd secrets set anthropic-key",
        "sandherd secrets set deploy-key --file id_ed25519",
    ),
)
def set_secret(  # one parameter per option
    ctx: typer.Context,
    name: Name,
    *,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Read the value from a file; - is standard input.")
    ] = None,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Store a value under a name, in place of the previous value.

    On a terminal it prompts without echo; otherwise it reads standard input. One line break at the end is removed.
    Tasks use it with `--secret VARIABLE=NAME`; each attempt gets the value that is stored when it starts.
    """
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.herd_session import command_context
    from sandherd.cli.parse.secret_input import read_value
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> "SecretView":
        return await herd.set_secret(name, await read_value(name, file), by=by)

    return show_change(
        ctx, work, lambda view: f"secret {view.name} is stored", project=project, output=output, create=create
    )


@app.command("list", epilog=example("sandherd secrets list", "sandherd secrets list -o json"))
def list_secrets(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the project's named secrets, without their values.

    TASKS is the number of unfinished tasks that use the secret. A secret that is not READABLE has to be set again.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.console import print_list

    async def work(herd: "Herd") -> int:
        secrets = await herd.secrets()
        print_list(output, secrets, HEADER, [_row(view) for view in secrets.secrets])
        return 0

    return run_with_herd(ctx, work, project=project)


@app.command("delete", epilog=example("sandherd secrets delete anthropic-key"))
def delete_secret(
    ctx: typer.Context,
    name: Name,
    *,
    force: Annotated[bool, typer.Option("--force", help="Delete it even if unfinished tasks use it.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Delete a named secret, and erase its value.

    This is refused while unfinished tasks use it. With `--force`, running attempts keep the value that they started
    with, and later attempts fail until the secret is set again.
    """
    from sandherd.cli.command_templates import show_change

    return show_change(
        ctx,
        lambda herd: herd.delete_secret(name, force=force),
        lambda view: f"secret {view.name} is deleted",
        project=project,
        output=output,
    )


def _row(view: "SecretView") -> list[object]:
    readable = "yes" if view.readable else "no: set it again"
    return [view.name, view.created_at, view.updated_at, view.updated_by, view.tasks, readable]
