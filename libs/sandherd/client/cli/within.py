"""`sandherd exec`, `cp`, `ls` and `runtimes`: what is done in a sandbox, and what sandboxes there can be."""

from typing import Annotated

import typer

from sandherd.client.cli.options import Env, Format, Output, Project, SandboxName, example

_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"
EXEC_EXAMPLE = example(
    f"sandherd exec {_SANDBOX} -- ls -l",
    f"sandherd exec {_SANDBOX} --cwd src --env CI=1 --timeout 10m -- make test",
    f"sandherd exec {_SANDBOX} --detach -- ./server",
    f"sandherd exec {_SANDBOX} --status exc-01kahc5x3tf8b9n2m4r6v8w0ya",
)
CP_EXAMPLE = example(
    f"sandherd cp data.csv {_SANDBOX}:in/data.csv",
    f"sandherd cp -r ./src {_SANDBOX}:src",
    f"sandherd cp -r {_SANDBOX}:results ./results",
)
LS_EXAMPLE = example(f"sandherd ls {_SANDBOX}", f"sandherd ls {_SANDBOX}:src -r -o json")
RUNTIMES_EXAMPLE = example("sandherd runtimes", "sandherd runtimes -o json")

SERVER_EXAMPLE = example(f"sandherd agent-server {_SANDBOX}", f"sandherd agent-server {_SANDBOX} --key -o json")

ExecName = Annotated[
    str | None, typer.Option("--status", metavar="EXC", help="How a command is that was started before.")
]


def exec_(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxName,
    argv: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND…", help="The command to run.")] = None,
    *,
    cwd: Annotated[str, typer.Option("--cwd", metavar="DIR", help="Where, in the work tree.")] = ".",
    env: Env = None,
    timeout: Annotated[str, typer.Option("--timeout", metavar="TIME", help="How long it may take: 90s, 10m.")] = "10m",
    detach: Annotated[bool, typer.Option("--detach", help="Start it, print its name, and leave it.")] = False,
    stdin: Annotated[bool, typer.Option("--stdin", help="Give it what comes on standard input, to its end.")] = False,
    status: ExecName = None,
    kill: Annotated[str | None, typer.Option("--kill", metavar="EXC", help="End a command started before.")] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Run a command in a sandbox, with its output here as it comes.

    The exit status is the command's own: 124 if its time was over, 126 if it could not be started, 128 and the number
    if a signal ended it. Ctrl-C ends the command.
    """
    from sandherd.client.cli import executions
    from sandherd.client.cli.talking import talk

    if status is not None or kill is not None:
        return talk(ctx, executions.of_before(sandbox, output, status=status, kill=kill), project=project)
    work = executions.run(
        sandbox, argv or [], output, cwd=cwd, env=env or [], timeout=timeout, detach=detach, stdin=stdin
    )
    return talk(ctx, work, project=project)


def cp(
    ctx: typer.Context,
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path here, or SANDBOX:PATH.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="The other one.")],
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="A folder with all that is in it.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Copy a file or a folder into a sandbox, or out of it.

    Paths in a sandbox are relative to its work tree. Into a folder that there is, it is copied under its own name. What
    came is checked against its digest.
    """
    from sandherd.client.cli import copies
    from sandherd.client.cli.talking import talk

    return talk(ctx, copies.copy(source, target, output, recursive=recursive), project=project)


def ls(
    ctx: typer.Context,
    place: Annotated[str, typer.Argument(metavar="SANDBOX[:PATH]", help="Whose files, and in which folder.")],
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="With what is in its folders.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """What is in a folder of a sandbox's work tree."""
    from sandherd.client.cli import copies
    from sandherd.client.cli.talking import talk

    return talk(ctx, copies.entries(place, output, recursive=recursive), project=project)


def runtimes(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """What can be asked for here: runtimes, profiles, kinds of agents, and the most that a sandbox may be given."""
    from sandherd.client.cli.catalogue import show
    from sandherd.client.cli.talking import talk

    return talk(ctx, lambda herd: show(herd, output), project=project)


def agent_server(
    ctx: typer.Context,
    sandbox: SandboxName,
    *,
    key: Annotated[
        bool, typer.Option("--key", help="Show its key, too: a secret, for X-Session-API-Key; and any further header.")
    ] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Where the agent server of a sandbox is, and how it stands.

    A sandbox has one that was made with `--agent-server`. Whoever has its key can run commands in the sandbox.
    """
    from sandherd.client.cli.serving import show
    from sandherd.client.cli.talking import talk

    return talk(ctx, lambda herd: show(herd, sandbox, output, key=key), project=project)
