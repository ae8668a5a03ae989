"""`sandherd artifacts`: list, get. An artifact is content that events refer to because it is too large for them."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import all_names
from sandherd.cli.options import Format, Output, Project, checked_sandbox, example, group

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

app = group("Artifacts that events refer to: list, get.", "sandherd artifacts list sbx-01kahc5x3tf8b9n2m4r6v8w0ya")
_TASK = "task-01kahc5x3tf8b9n2m4r6v8w0ya"
_ARTIFACT = "art-01kahc5x3tf8b9n2m4r6v8w0ya"


def _checked_artifact(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "artifact")


@app.command("list", epilog=example(f"sandherd artifacts list {_TASK}", f"sandherd artifacts list {_TASK} -o json"))
def list_artifacts(
    ctx: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="SANDBOX|TASK",
            help="Name of a sandbox or of a task.",
            callback=checked_sandbox,
            autocompletion=all_names,
        ),
    ],
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List the artifacts that the events of a sandbox, or of a task and its sandboxes, refer to, oldest first.

    Artifacts are values that are too large for an event, such as long outputs, diffs, transcripts, work trees and a
    task's input files.
    """
    from sandherd.cli import artifact_output
    from sandherd.cli.herd_session import run_with_herd

    async def work(herd: "Herd") -> int:
        return await artifact_output.show_list(herd, name, output)

    return run_with_herd(ctx, work, project=project)


@app.command(
    "get", epilog=example(f"sandherd artifacts get {_ARTIFACT}", f"sandherd artifacts get {_ARTIFACT} -o work.tar")
)
def get(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="An artifact's name.", callback=_checked_artifact)],
    *,
    target: Annotated[
        str,
        typer.Option("-o", "--output", metavar="FILE|-", help="Write the artifact to this file; - is standard output."),
    ] = "-",
    owner: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="SANDBOX|TASK",
            help="Search only events of this sandbox or task.",
            callback=checked_sandbox,
            autocompletion=all_names,
        ),
    ] = None,
    project: Project = None,
) -> int:
    """Write the content of an artifact to standard output or to a file, after its size and SHA-256 are verified.

    A terminal gets only text, without control characters; a file or pipe gets the content unchanged. The event with the
    artifact is searched in the history: from an hour before the artifact was created to a day after, or with --of in
    all events of a sandbox or task.
    """
    from sandherd.cli import artifact_output
    from sandherd.cli.herd_session import run_with_herd

    async def work(herd: "Herd") -> int:
        return await artifact_output.write_artifact(herd, name, target, owner)

    return run_with_herd(ctx, work, project=project)
