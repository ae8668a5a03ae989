"""`sandherd secrets`: set, list, delete. Values are read from standard input, a file or a prompt, never shown."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Format, Output, Project, example, group

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import SecretView

app = group("Named secrets of a project: set, list, delete.", "sandherd secrets list")
HEADER = ("NAME", "CREATED", "UPDATED", "BY", "TASKS", "READABLE")


def _checked(name: str) -> str:
    from sandherd.client.named_secrets import checked_secret_name

    return checked_secret_name(name)


Name = Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, _ and -.", callback=_checked)]


@app.command(
    "set",
    epilog=example(
        "sandherd secrets set anthropic-key",
        "printenv ANTHROPIC_API_KEY | sandherd secrets set anthropic-key",
        "sandherd secrets set deploy-key --file id_ed25519",
    ),
)
def set_secret(
    ctx: typer.Context,
    name: Name,
    file: Annotated[
        Path | None, typer.Option("--file", metavar="PATH", help="Read the value from a file; - is standard input.")
    ] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Store a value under a name, instead of the one before.

    On a terminal it is asked for without being shown; else it is read from standard input. One line break at its end is
    removed. Tasks name it with `--secret VARIABLE=NAME`; each attempt begins with the value that is stored then.
    """
    from sandherd.client.cli.changing import changed
    from sandherd.client.cli.secret_input import read_value
    from sandherd.client.cli.talking import where
    from sandherd.client.context import holder

    credentials = where(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> "SecretView":
        return await herd.set_secret(name, await read_value(name, file), by=by)

    return changed(ctx, work, lambda view: f"secret {view.name} is stored", project=project, output=output)


@app.command("list", epilog=example("sandherd secrets list", "sandherd secrets list -o json"))
def list_secrets(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """The project's named secrets, without their values.

    TASKS is how many tasks that have not ended name it. One that is not READABLE has to be set again.
    """
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.secrets()
        answer(output, found, HEADER, [_row(one) for one in found.secrets])
        return 0

    return talk(ctx, work, project=project)


@app.command("delete", epilog=example("sandherd secrets delete anthropic-key"))
def delete_secret(
    ctx: typer.Context,
    name: Name,
    *,
    force: Annotated[bool, typer.Option("--force", help="Also while tasks that have not ended name it.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Delete a named secret, and erase its value.

    While tasks that have not ended name it, that is refused. With `--force` attempts that run keep the value they were
    given, and later ones fail until it is set again.
    """
    from sandherd.client.cli.changing import changed

    return changed(
        ctx,
        lambda herd: herd.delete_secret(name, force=force),
        lambda found: f"secret {found.name} is deleted",
        project=project,
        output=output,
    )


def _row(view: "SecretView") -> list[object]:
    readable = "yes" if view.readable else "no: set it again"
    return [view.name, view.created_at, view.updated_at, view.updated_by, view.tasks, readable]
