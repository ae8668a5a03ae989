"""`sandherd run` and `send`: giving work, and saying something to who does it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Format, Output, Project, SandboxName, example

if TYPE_CHECKING:
    from sandherd.client.herd import Herd

RUN_EXAMPLE = example(
    'sandherd run "Compute C(50, 25)" --file agent.py -- python3 agent.py',
    'sandherd run "Say hello" --env NAME=you --no-follow -- sh -c "echo hello $NAME"',
)
SEND_EXAMPLE = example(
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Also write a test"',
    'sandherd send sbx-01kahc5x3tf8b9n2m4r6v8w0ya "Stop, and undo that" --interrupt',
)


def run(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    text: Annotated[str, typer.Argument(metavar="TASK", help="What is to be done, in words.")],
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- PROGRAM…", help="The program that does it.")] = None,
    *,
    harness: Annotated[str, typer.Option("--harness", help="The kind of agent: command.")] = "command",
    runtime: Annotated[str, typer.Option("--runtime", help="Where its sandbox is made: process.")] = "process",
    file: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            metavar="PATH",
            help="A text file for the work tree; again for more. It keeps the folders of a relative path; "
            "an absolute one, or one with .., becomes its last name.",
        ),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="K=V", help="A variable of the program; again for more.")
    ] = None,
    secret_env: Annotated[
        list[str] | None,
        typer.Option("--secret-env", metavar="K=V", help="A variable kept out of events; K alone copies yours."),
    ] = None,
    linger: Annotated[
        int, typer.Option("--linger", metavar="SECONDS", help="Keep the sandbox so long for messages.", min=0)
    ] = 0,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="Show what happens, to the end.")] = True,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Give a task to an agent, and show what it does.

    It works in a sandbox of its own. The exit status is 1 if the task is not completed.
    """
    from sandherd.client.cli import running
    from sandherd.client.cli.spec import spec
    from sandherd.client.cli.talking import talk

    task = spec(
        text,
        argv or [],
        harness=harness,
        runtime=runtime,
        files=file or [],
        env=env or [],
        secret=secret_env or [],
        linger=linger,
    )
    return talk(ctx, lambda herd: running.run(herd, task, output, follow=follow), project=project)


def send(
    ctx: typer.Context,
    sandbox: SandboxName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to say.")],
    *,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Stop what the agent is doing.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0.1)] = 30.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Say something to a running agent.

    Waits for its receipt, and shows how long the delivery took. The exit status is 1 if it can't be delivered.
    """
    from sandherd.client.cli import running
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        delivery = await herd.deliver(
            sandbox, text, message_type="interrupt" if interrupt else "user_message", timeout=timeout
        )
        return running.show_delivery(delivery, output)

    return talk(ctx, work, project=project)
