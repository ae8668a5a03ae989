"""`sandherd sandboxes`: list, get, create, pause, resume, extend, terminate, prune."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.listing import ask_for, show_list, show_one
from sandherd.client.cli.options import (
    AgentServer,
    Cores,
    Cursor,
    Env,
    Files,
    Format,
    Image,
    Limit,
    Memory,
    Output,
    Past,
    Profile,
    Project,
    Runtime,
    SandboxName,
    SecretEnv,
    Secrets,
    example,
    group,
)
from sandherd.contracts.states import SandboxState

if TYPE_CHECKING:
    from sandherd.contracts.requests import SandboxView

app = group("Sandboxes: list, get, create, pause, resume, extend, terminate, prune.", "sandherd sandboxes list")
HEADER = ("SANDBOX", "STATE", "TASK", "RUNTIME", "PROFILE", "REQUESTED", "EXPIRES", "REASON")
_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"


@app.command(
    "list", epilog=example("sandherd sandboxes list --state running", "sandherd sandboxes list --past -o json")
)
def list_sandboxes(  # one parameter per option
    ctx: typer.Context,
    *,
    state: Annotated[SandboxState | None, typer.Option("--state", help="Only sandboxes in this state.")] = None,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Sandboxes, newest first: those that live, and those that ended lately."""
    return show_list(
        ctx,
        lambda herd: herd.sandboxes(state=state, limit=limit, cursor=cursor, past=past),
        _row,
        key="sandboxes",
        header=HEADER,
        project=project,
        output=output,
    )


@app.command("get", epilog=example(f"sandherd sandboxes get {_SANDBOX}"))
def get_sandbox(
    ctx: typer.Context, sandbox: SandboxName, project: Project = None, output: Output = Format.TABLE
) -> int:
    """One sandbox as it stands, or as it stood last."""
    return show_one(ctx, lambda herd: herd.sandbox(sandbox), project=project, output=output)


@app.command("create", epilog=example("sandherd sandboxes create --ttl 2h", "sandherd sandboxes create --no-wait"))
def create_sandbox(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    *,
    runtime: Runtime = None,
    image: Image = None,
    profile: Profile = None,
    memory: Memory = None,
    cores: Cores = None,
    ttl: Annotated[
        str | None, typer.Option("--ttl", metavar="TIME", help="How long it may live: 90s, 10m, 2h.")
    ] = None,
    file: Files = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    secret: Secrets = None,
    agent_server: AgentServer = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until it runs.")] = True,
    timeout: Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait.", min=0.1)] = 120.0,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Make a sandbox without a task, now, and print its name.

    Commands are run in it with `sandherd exec`, files copied with `sandherd cp`. It lives until it is terminated or its
    time is over.
    """
    from sandherd.client.cli import making
    from sandherd.client.cli.durations import limits_of
    from sandherd.client.cli.talking import talk

    spec = making.sandbox_spec(
        runtime=runtime,
        image=image,
        profile=profile,
        ttl=ttl,
        files=file or [],
        env=env or [],
        secret=secret_env or [],
        named=secret or [],
        server=agent_server,
    )
    work = making.create(spec, output, limits=limits_of(memory, cores), wait=wait, timeout=timeout)
    return talk(ctx, work, project=project)


@app.command("pause", epilog=example(f"sandherd sandboxes pause {_SANDBOX}"))
def pause_sandbox(
    ctx: typer.Context,
    sandbox: SandboxName,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the sandbox.")] = "",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Freeze a sandbox as it is, and wait until it is frozen.

    Its time to live and the time limits of its task go on.
    """
    from sandherd.client.cli.changing import changed

    return changed(
        ctx, lambda herd: herd.pause(sandbox, reason=reason), _said("paused"), project=project, output=output
    )


@app.command("resume", epilog=example(f"sandherd sandboxes resume {_SANDBOX}"))
def resume_sandbox(
    ctx: typer.Context, sandbox: SandboxName, project: Project = None, output: Output = Format.TABLE
) -> int:
    """Let a paused sandbox go on."""
    from sandherd.client.cli.changing import changed

    return changed(ctx, lambda herd: herd.resume(sandbox), _said("running"), project=project, output=output)


@app.command("extend", epilog=example(f"sandherd sandboxes extend {_SANDBOX} 2h"))
def extend_sandbox(
    ctx: typer.Context,
    sandbox: SandboxName,
    by: Annotated[str, typer.Argument(metavar="TIME", help="How much longer from now: 90s, 10m, 2h.")],
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Let a sandbox live so much longer, from now."""
    from sandherd.client.cli.changing import changed
    from sandherd.client.cli.durations import seconds
    from sandherd.client.cli.printing import cell

    longer = seconds(by, "TIME")
    return changed(
        ctx,
        lambda herd: herd.extend(sandbox, longer),
        lambda view: f"{sandbox} may live until {cell(view.expires_at)}",
        project=project,
        output=output,
    )


@app.command("terminate", epilog=example(f"sandherd sandboxes terminate {_SANDBOX}"))
def terminate_sandbox(
    ctx: typer.Context,
    sandbox: SandboxName,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the sandbox.")] = "asked for",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """End a sandbox and every process in it."""
    return ask_for(
        ctx,
        lambda herd: herd.sandbox(sandbox),
        lambda herd: herd.terminate(sandbox, reason=reason),
        what=("end", "sandbox", sandbox),
        project=project,
        output=output,
    )


@app.command("prune", epilog=example("sandherd sandboxes prune", "sandherd sandboxes prune --now -o json"))
def prune_sandboxes(
    ctx: typer.Context,
    *,
    now: Annotated[bool, typer.Option("--now", help="Remove orphans without waiting for their grace time.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Compare all records with what the runtimes really have. For operators.

    What no record wants is an orphan: it is shown, and removed after its grace time. What a record wants and no runtime
    has is lost: its attempt fails.
    """
    from sandherd.client.cli import making
    from sandherd.client.cli.talking import talk_as_operator

    return talk_as_operator(ctx, making.prune(output, now=now))


def _said(state: str) -> "Callable[[SandboxView], str]":
    return lambda view: f"{view.sandbox} is {state}"


def _row(sandbox: "SandboxView") -> list[object]:
    return [
        sandbox.sandbox,
        sandbox.state,
        sandbox.task,
        sandbox.runtime,
        sandbox.profile,
        sandbox.requested_at,
        sandbox.expires_at,
        sandbox.error or sandbox.reason,
    ]
