"""`sandherd exec`, `cp`, `ls`, `port-forward`, `agent-server` and `runtimes`: use a sandbox, and show runtimes."""

from typing import Annotated

import typer

from sandherd.cli.options import Env, Format, NamelessOutput, Output, Project, SandboxName, SandboxOrTask, example

_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"
EXEC_EXAMPLE = example(
    f"sandherd exec {_SANDBOX} ls -l",
    f"sandherd exec --cwd src --env CI=1 --timeout 10m {_SANDBOX} make test",
    f"sandherd exec -it {_SANDBOX} bash",
    f"sandherd exec --detach {_SANDBOX} ./server",
    f"sandherd exec --status exc-01kahc5x3tf8b9n2m4r6v8w0ya {_SANDBOX}",
)
CP_EXAMPLE = example(
    f"sandherd cp data.csv {_SANDBOX}:in/data.csv",
    f"sandherd cp -r ./src {_SANDBOX}:src",
    f"sandherd cp -r {_SANDBOX}:results ./results",
    f"sandherd cp {_SANDBOX}:report.json -",
    f"sandherd cp - {_SANDBOX}:change.patch",
)
LS_EXAMPLE = example(f"sandherd ls {_SANDBOX}", f"sandherd ls {_SANDBOX}:src -r -o json")
FORWARD_EXAMPLE = example(f"sandherd port-forward {_SANDBOX} 8080:80", f"sandherd port-forward {_SANDBOX} :3000")
RUNTIMES_EXAMPLE = example("sandherd runtimes", "sandherd runtimes -o json")

SERVER_EXAMPLE = example(f"sandherd agent-server {_SANDBOX}", f"sandherd agent-server {_SANDBOX} --key -o json")

ExecName = Annotated[
    str | None,
    typer.Option(
        "--status",
        metavar="EXC",
        help="Show the state of a detached command; the exit status is that of the command if it has ended, else 0.",
    ),
]


def exec_(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    argv: Annotated[list[str] | None, typer.Argument(metavar="COMMAND…", help="The command to run.")] = None,
    *,
    cwd: Annotated[
        str, typer.Option("--cwd", metavar="DIR", help="Working directory, relative to the work tree.")
    ] = ".",
    env: Env = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="TIME", help="Time limit [default: 10m; with -t 24h].")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Start the command, print its name, and do not wait.")
    ] = False,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Pass standard input to the command, until end of file.")
    ] = False,
    terminal: Annotated[bool, typer.Option("--tty", "-t", help="Connect the command to this terminal.")] = False,
    status: ExecName = None,
    kill: Annotated[str | None, typer.Option("--kill", metavar="EXC", help="End a detached command.")] = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Run a command in a sandbox, and stream its output.

    Write options before the name of the sandbox. The words after the name, or after `--`, are the command. The exit
    status is that of the command, 124 if it timed out, 126 if it could not be started, or 128 plus the number of the
    signal that ended it. Ctrl-C ends the command. With -t every key goes to the command, also Ctrl-C; the command is
    ended 60 s after this client has ended or lost its connection.
    """
    from sandherd.cli import exec_session
    from sandherd.cli.herd_session import run_with_herd

    if status is not None or kill is not None:
        return run_with_herd(
            ctx, exec_session.detached_command(sandbox, output, status=status, kill=kill), project=project
        )
    if terminal:
        from sandherd.cli import terminal_session

        return run_with_herd(
            ctx, terminal_session.run(sandbox, argv or [], cwd=cwd, env=env or [], timeout=timeout), project=project
        )
    work = exec_session.run(
        sandbox, argv or [], output, cwd=cwd, env=env or [], timeout=timeout or "10m", detach=detach, stdin=stdin
    )
    return run_with_herd(ctx, work, project=project)


def cp(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="SRC", help="A local path, SANDBOX:PATH, TASK:PATH, or - for standard input.")
    ],
    target: Annotated[str, typer.Argument(metavar="DST", help="SANDBOX:PATH, a local path, or - for standard output.")],
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Copy a folder with its contents.")] = False,
    with_git: Annotated[
        bool,
        typer.Option(
            "--with-git", help="Also copy .git out of a sandbox. Git on this machine runs the programs that it names."
        ),
    ] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Copy a file or a folder into a sandbox, out of it, or out of the stored files of a task (`sandherd files`).

    Paths in a sandbox are relative to its work tree. If the target is an existing folder, the copy has the name of the
    source. The digest of the received data is verified. Folders are copied out of a sandbox without `.git`, because git
    on this machine would run the programs that an agent has named in it. Standard output gets only the bytes of one
    file; a terminal shows only text.
    """
    from sandherd.cli import file_copy, stream_copy, task_results
    from sandherd.cli.herd_session import run_with_herd

    if stream_copy.is_stream(source, target):
        return stream_copy.copy(lambda work: run_with_herd(ctx, work, project=project), source, target, output)
    task_copy = task_results.copy(source, target, output, recursive=recursive, with_git=with_git)
    work = task_copy or file_copy.copy(source, target, output, recursive=recursive, with_git=with_git)
    return run_with_herd(ctx, work, project=project)


def ls(
    ctx: typer.Context,
    place: Annotated[str, typer.Argument(metavar="SANDBOX[:PATH]", help="Sandbox, and folder to list.")],
    *,
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="List subfolders, too.")] = False,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List a folder of a sandbox's work tree."""
    from sandherd.cli import file_copy
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, file_copy.entries(place, output, recursive=recursive), project=project)


def port_forward(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    ports: Annotated[
        list[str],
        typer.Argument(
            metavar="[LOCAL:]REMOTE…",
            help="Ports, such as 8080:80. Without LOCAL the local port is the same; with `:80` it is any free port.",
        ),
    ],
    *,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Forward ports of this machine's loopback to ports on the loopback of a sandbox, until Ctrl-C.

    While the command runs, every process on this machine can connect to these ports. Only ports of programs in the
    sandbox are forwarded, never ports of its host. As JSON, one line per port.
    """
    from sandherd.cli.forwarded_ports import forward
    from sandherd.cli.herd_session import run_with_herd

    return run_with_herd(ctx, forward(sandbox, ports, output), project=project)


def runtimes(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show the available runtimes, profiles and harnesses, and the limits of a sandbox."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.render.catalogue import show

    return run_with_herd(ctx, lambda herd: show(herd, output), project=project)


def agent_server(
    ctx: typer.Context,
    sandbox: SandboxName,
    *,
    key: Annotated[
        bool,
        typer.Option(
            "--key", help="Also show the key, which is a secret for the header X-Session-API-Key, and other headers."
        ),
    ] = False,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the address and state of a sandbox's agent server.

    Sandboxes created with `--agent-server` have one. Anyone with its key can run commands in the sandbox.
    """
    from sandherd.cli.agent_server import show
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_sandbox

    work = with_sandbox(sandbox, lambda herd, name: show(herd, name, output, key=key))
    return run_with_herd(ctx, work, project=project)
