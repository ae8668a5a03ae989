"""`sandherd sandboxes`: list, get, logs, create, pause, resume, extend, terminate, prune."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.command_templates import send_command, show_list, show_one
from sandherd.cli.options import (
    AgentServer,
    Cores,
    CreateProject,
    Cursor,
    Env,
    Files,
    Format,
    Image,
    Limit,
    Memory,
    NamelessOutput,
    Output,
    Past,
    Profile,
    Project,
    Runtime,
    SandboxOrTask,
    SecretEnv,
    Secrets,
    example,
    group,
)
from sandherd.cli.parse.durations import TWO_MINUTES, WaitTime
from sandherd.cli.parse.list_options import (
    Batch,
    LabelFilter,
    SandboxStates,
    SinceRequest,
    Sort,
    SortBy,
    Watch,
    list_filter,
)
from sandherd.cli.render.table import Column

if TYPE_CHECKING:
    from sandherd.client.errors import InvalidFieldError
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import SandboxView

app = group("Sandboxes: list, get, logs, create, pause, resume, extend, terminate, prune.", "sandherd sandboxes list")
HEADER = (
    "SANDBOX",
    "STATE",
    Column("TASK", 1),
    Column("RUNTIME", 3),
    Column("PROFILE", 6),
    Column("REQUESTED", 4),
    Column("EXPIRES", 5),
    Column("REASON", 2, cut=True),
)
_SANDBOX = "sbx-01kahc5x3tf8b9n2m4r6v8w0ya"


@app.command(
    "list",
    epilog=example(
        "sandherd sandboxes list --state running --state paused",
        "sandherd sandboxes list --label team=web --watch",
        "sandherd sandboxes list --past --since 1d --sort oldest -o json",
    ),
)
def list_sandboxes(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    *,
    state: SandboxStates = None,
    label: LabelFilter = None,
    batch: Batch = None,
    since: SinceRequest = None,
    sort: SortBy = Sort.NEWEST,
    watch: Watch = False,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """List live and recently ended sandboxes. A sandbox has the labels and the batch of its task."""
    filters = list_filter(state or [], label or [], batch, since, sort)
    return show_list(
        ctx,
        lambda herd: herd.sandboxes(limit=limit, cursor=cursor, past=past, **filters),
        _row,
        key="sandboxes",
        header=HEADER,
        project=project,
        output=output,
        watch=("sandbox",) if watch else (),
    )


@app.command("get", epilog=example(f"sandherd sandboxes get {_SANDBOX}"))
def get_sandbox(
    ctx: typer.Context, sandbox: SandboxOrTask, project: Project = None, output: Output = Format.TABLE
) -> int:
    """Show one sandbox in its present or final state."""
    from sandherd.cli.name_prefixes import sandbox_view

    async def show_details(_herd: "Herd", view: "SandboxView") -> None:
        from sandherd.cli.render.details import sandbox_facts, show

        show(sandbox_facts(view))

    return show_one(
        ctx,
        lambda herd: sandbox_view(herd, sandbox),
        key="sandbox",
        project=project,
        output=output,
        show=show_details,
    )


@app.command("logs", epilog=example(f"sandherd sandboxes logs {_SANDBOX} -n 50"))
def sandbox_logs(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    *,
    lines: Annotated[int, typer.Option("--lines", "-n", metavar="N", help="Number of lines.", min=1, max=1000)] = 200,
    project: Project = None,
    output: NamelessOutput = Format.TABLE,
) -> int:
    """Show the log that the runtime stores for the process, container or pod of a sandbox.

    It is the worker's log, for problems of the sandbox itself; `sandherd logs` shows the output of the agent.
    """
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_sandbox
    from sandherd.cli.runtime_log import show

    show_log = with_sandbox(sandbox, lambda herd, name: show(herd, name, output, lines=lines))
    return run_with_herd(ctx, show_log, project=project)


@app.command("create", epilog=example("sandherd sandboxes create --ttl 2h", "sandherd sandboxes create --no-wait"))
def create_sandbox(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    *,
    runtime: Runtime = None,
    image: Image = None,
    profile: Profile = None,
    memory: Memory = None,
    cores: Cores = None,
    ttl: Annotated[str | None, typer.Option("--ttl", metavar="TIME", help="Lifetime: 90s, 10m, 2h.")] = None,
    file: Files = None,
    env: Env = None,
    secret_env: SecretEnv = None,
    secret: Secrets = None,
    agent_server: AgentServer = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the sandbox runs.")] = True,
    timeout: WaitTime = TWO_MINUTES,
    project: Project = None,
    create: CreateProject = False,
    output: Output = Format.TABLE,
) -> int:
    """Create a sandbox without a task, and print its name.

    Run commands in it with `sandherd exec`, and copy files with `sandherd cp`. It exists until it is terminated or
    expires.
    """
    from sandherd.cli import sandbox_creation
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.parse.units import limits_of
    from sandherd.client.errors import InvalidFieldError

    try:
        spec = sandbox_creation.sandbox_spec(
            runtime=runtime,
            image=image,
            profile=profile,
            ttl=ttl,
            files=file or [],
            env=env or [],
            secret_env=secret_env or [],
            secret_references=secret or [],
            agent_server=agent_server,
        )
    except InvalidFieldError as error:
        return _refuse(ctx, error, ttl, project)
    work = sandbox_creation.create(spec, output, limits=limits_of(memory, cores), wait=wait, timeout=timeout)
    return run_with_herd(ctx, work, project=project, create=create, activity="creating the sandbox")


def _refuse(ctx: typer.Context, error: "InvalidFieldError", ttl: str | None, project: str | None) -> int:
    """Raise the error of an invalid field. For a lifetime it names the herd's maximum, if the herd can be reached."""
    from sandherd.cli import sandbox_creation
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.client.errors import NotReachedError

    if error.problem.field != "ttl_seconds" or ttl is None:
        raise error
    try:
        return run_with_herd(ctx, sandbox_creation.refuse_lifetime(error, ttl), project=project, create=True)
    except NotReachedError:
        raise error from None


@app.command("pause", epilog=example(f"sandherd sandboxes pause {_SANDBOX}"))
def pause_sandbox(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    reason: Annotated[str, typer.Option("--reason", help="Reason, stored with the sandbox.")] = "",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Freeze the processes of a sandbox, and wait until they are frozen.

    Its time to live and the time limits of its task keep running.
    """
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.name_prefixes import with_live_sandbox

    pause = with_live_sandbox(sandbox, lambda herd, name: herd.pause(name, reason=reason))
    return show_change(ctx, pause, _state_text("paused"), project=project, output=output)


@app.command("resume", epilog=example(f"sandherd sandboxes resume {_SANDBOX}"))
def resume_sandbox(
    ctx: typer.Context, sandbox: SandboxOrTask, project: Project = None, output: Output = Format.TABLE
) -> int:
    """Resume a paused sandbox, and wait until it runs."""
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.name_prefixes import with_live_sandbox

    resume = with_live_sandbox(sandbox, lambda herd, name: herd.resume(name))
    return show_change(ctx, resume, _state_text("running"), project=project, output=output)


@app.command("extend", epilog=example(f"sandherd sandboxes extend {_SANDBOX} 2h"))
def extend_sandbox(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    by: Annotated[str, typer.Argument(metavar="TIME", help="New lifetime from now: 90s, 10m, 2h.")],
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Set the expiry of a sandbox to this time from now, unless it expires later anyway."""
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.name_prefixes import with_live_sandbox
    from sandherd.cli.parse.units import seconds
    from sandherd.cli.render.console import cell

    lifetime_seconds = seconds(by, "TIME")

    async def extend(herd: "Herd", name: str) -> "SandboxView":
        from sandherd.client.errors import InvalidFieldError
        from sandherd.client.tasks.preflight import lifetime_error

        try:
            return await herd.extend(name, lifetime_seconds)
        except InvalidFieldError:  # the contract's limit is higher than that of this herd
            raise lifetime_error(
                lifetime_seconds, (await herd.catalogue()).max_ttl_seconds, "seconds", "TIME"
            ) from None

    return show_change(
        ctx,
        with_live_sandbox(sandbox, extend),
        lambda view: f"{view.sandbox} may live until {cell(view.expires_at)}",
        project=project,
        output=output,
    )


@app.command("terminate", epilog=example(f"sandherd sandboxes terminate {_SANDBOX}"))
def terminate_sandbox(
    ctx: typer.Context,
    sandbox: SandboxOrTask,
    reason: Annotated[str, typer.Option("--reason", help="Reason, stored with the sandbox.")] = "requested by user",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Terminate a sandbox and every process in it."""
    return send_command(
        ctx,
        lambda herd, name: herd.sandbox(name),
        lambda herd, name: herd.terminate(name, reason=reason),
        target=("end", "sandbox", sandbox),
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
    """Compare all records with the sandboxes that the runtimes have. For operators.

    A sandbox without a record is an orphan: it is listed, and removed after its grace time. A sandbox with a record
    that no runtime has is lost: its attempt fails.
    """
    from sandherd.cli import sandbox_creation
    from sandherd.cli.herd_session import run_as_operator

    return run_as_operator(ctx, sandbox_creation.prune(output, now=now))


def _state_text(state: str) -> "Callable[[SandboxView], str]":
    return lambda view: f"{view.sandbox} is {state}"


def _row(sandbox: "SandboxView") -> list[object]:
    from sandherd.contracts.states import SANDBOX_ENDED

    return [
        sandbox.sandbox,
        sandbox.state,
        sandbox.task,
        sandbox.runtime,
        sandbox.profile,
        sandbox.requested_at,
        None if sandbox.state in SANDBOX_ENDED else sandbox.expires_at,
        sandbox.error or sandbox.reason,
    ]
