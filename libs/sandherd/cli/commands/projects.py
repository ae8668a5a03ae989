"""`sandherd projects`: list, show, create, set. Changes need an operator's credential."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sandherd.cli.completion import project_names
from sandherd.cli.options import Format, Output, example, group
from sandherd.cli.parse.constraints import ForbidCommand, ForbidPath, ProjectPermit, constraints_of
from sandherd.cli.parse.repository import (
    Lfs,
    NoCommitRest,
    NoPush,
    ProjectBase,
    ProjectGitProxy,
    SubmodulesOption,
    project_repository,
)
from sandherd.contracts.states import SteeringStep

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import ProjectView

app = group("Projects: list, show; create or change limits and defaults.", "sandherd projects list")


def _checked_project(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "project")


def _checked_harness(kind: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if kind is None else checked_name(kind, "harness")


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The project.", callback=_checked_project, autocompletion=project_names)
]
Tasks = Annotated[int | None, typer.Option("--tasks", metavar="N", help="Maximum number of running tasks.", min=0)]
Sandboxes = Annotated[
    int | None, typer.Option("--sandboxes", metavar="N", help="Maximum number of live sandboxes.", min=0)
]
Harness = Annotated[
    str | None,
    typer.Option(
        "--harness",
        metavar="KIND",
        help="Kind of agent for tasks that name neither a kind nor a program.",
        callback=_checked_harness,
    ),
]
Model = Annotated[str | None, typer.Option("--model", metavar="TEXT", help="Model for tasks that name no model.")]
Memory = Annotated[
    str | None, typer.Option("--memory", metavar="SIZE", help="Memory for tasks without limits: 512m, 4g.")
]
Cores = Annotated[
    float | None, typer.Option("--cores", metavar="NUMBER", help="Cores for tasks without limits: 2, 0.5.", min=0.05)
]
Timeout = Annotated[
    str | None,
    typer.Option("--attempt-timeout", metavar="TIME", help="Time limit of an attempt for tasks without one: 10m, 2h."),
]
Image = Annotated[
    str | None,
    typer.Option("--image", metavar="IMAGE", help="Image for tasks that name none, in runtimes with images."),
]

Repo = Annotated[
    str | None, typer.Option("--repo", metavar="URL", help="Git repository for tasks that begin with no other files.")
]
MaxIntervention = Annotated[
    SteeringStep | None,
    typer.Option("--max-intervention", help="The strongest step of the monitor's guardian rules."),
]


@app.command("list", epilog=example("sandherd projects list", "sandherd projects list -o json"))
def list_projects(ctx: typer.Context, output: Output = Format.TABLE) -> int:
    """List the projects that have their own limits or defaults, or that have tasks or sandboxes now.

    A client's credential shows only its project. The costs are read from the history, if that is available.
    """
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.projects import show_projects

    return run_as_operator(ctx, show_projects(output))


@app.command("show", epilog=example("sandherd projects show web", "sandherd projects show web -o json"))
def show_project(ctx: typer.Context, name: Name, output: Output = Format.TABLE) -> int:
    """Show a project: its limits with their sources, its defaults, its present use, its cost, its users.

    Its users are those who have submitted a current task or set a secret. The names are those that their clients sent.
    """
    from sandherd.cli.herd_session import run_as_operator
    from sandherd.cli.render.projects import show_project as show_work

    return run_as_operator(ctx, show_work(name, output), project=name)


@app.command(
    "create",
    epilog=example(
        "sandherd projects create web --repo https://github.com/OWNER/NAME", "sandherd projects create research"
    ),
)
def create_project(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    name: Name,
    *,
    tasks: Tasks = None,
    sandboxes: Sandboxes = None,
    harness: Harness = None,
    model: Model = None,
    memory: Memory = None,
    cores: Cores = None,
    attempt_timeout: Timeout = None,
    image: Image = None,
    repo: Repo = None,
    base: ProjectBase = None,
    no_push: NoPush = False,
    no_commit_rest: NoCommitRest = False,
    submodules: SubmodulesOption = None,
    lfs: Lfs = False,
    git_proxy: ProjectGitProxy = None,
    max_intervention: MaxIntervention = None,
    forbid_path: ForbidPath = None,
    forbid_command: ForbidCommand = None,
    permit: ProjectPermit = None,
    output: Output = Format.TABLE,
) -> int:
    """Create a project with limits and defaults. Others are taken from the herd's settings.

    To create the same project again changes nothing, with exit status 0; with other limits or defaults it is an error.
    """
    limits = {"tasks": tasks, "sandboxes": sandboxes}
    repository = project_repository(repo, base=base, no_push=no_push, no_commit_rest=no_commit_rest,
                                    submodules=submodules, lfs=lfs, git_proxy=git_proxy)  # fmt: skip
    constraints = constraints_of(forbid_path, forbid_command, permit)
    options = {"harness": harness, "model": model, "cores": cores, "image": image, "repository": repository}
    defaults = {**options, "constraints": constraints, "max_intervention": max_intervention}
    return _change(ctx, name, output, "created", **_values(limits, defaults, memory, attempt_timeout))


@app.command(
    "set", epilog=example("sandherd projects set web --tasks 8", "sandherd projects set web --memory 4g --unset cores")
)
def set_project(  # noqa: PLR0913  # one parameter per option
    ctx: typer.Context,
    name: Name,
    *,
    tasks: Tasks = None,
    sandboxes: Sandboxes = None,
    harness: Harness = None,
    model: Model = None,
    memory: Memory = None,
    cores: Cores = None,
    attempt_timeout: Timeout = None,
    image: Image = None,
    repo: Repo = None,
    base: ProjectBase = None,
    no_push: NoPush = False,
    no_commit_rest: NoCommitRest = False,
    submodules: SubmodulesOption = None,
    lfs: Lfs = False,
    git_proxy: ProjectGitProxy = None,
    max_intervention: MaxIntervention = None,
    forbid_path: ForbidPath = None,
    forbid_command: ForbidCommand = None,
    permit: ProjectPermit = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="FIELD",
            help="Remove the project's value, so that the herd's value applies: tasks, sandboxes, harness, model, "
            "memory_mb, cores, attempt_seconds, image, repository, max_intervention or constraints. Repeatable.",
        ),
    ] = None,
    output: Output = Format.TABLE,
) -> int:
    """Change limits and defaults of a project; others do not change.

    A limit takes effect at once, also for waiting tasks; running tasks are not ended. A default is for later tasks.
    """
    repository = project_repository(repo, base=base, no_push=no_push, no_commit_rest=no_commit_rest,
                                    submodules=submodules, lfs=lfs, git_proxy=git_proxy)  # fmt: skip
    constraints = constraints_of(forbid_path, forbid_command, permit)
    options = {"harness": harness, "model": model, "cores": cores, "image": image, "repository": repository}
    defaults = {**options, "constraints": constraints, "max_intervention": max_intervention}
    values = _values({"tasks": tasks, "sandboxes": sandboxes}, defaults, memory, attempt_timeout)
    if not (unset or any(values.values())):
        raise _no_change()
    return _change(ctx, name, output, "changed", **values, unset=unset or [])


def _no_change() -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    remedy = "give a limit or default as an option, or remove one with --unset"
    return HerdError.of(Code.INVALID_FIELD, "there is nothing to change", field="project", remedy=remedy)


def _values(
    limits: Mapping[str, Any], defaults: Mapping[str, Any], memory: str | None, attempt_timeout: str | None
) -> dict[str, dict[str, Any]]:
    """The limits and defaults that are set. Raises `HerdError` for an invalid size or time."""
    from sandherd.cli.parse.units import memory_of, seconds

    timeout = None if attempt_timeout is None else seconds(attempt_timeout, "--attempt-timeout")
    sizes = {"memory_mb": memory_of(memory), "attempt_seconds": timeout}
    return {"limits": _without_none(limits), "defaults": _without_none({**defaults, **sizes})}


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _change(ctx: typer.Context, name: str, output: Format, change: str, **values: Any) -> int:
    from sandherd.cli.command_templates import show_change
    from sandherd.cli.herd_session import command_context
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=name, role="operator").credentials
    by = holder(credentials).name if credentials else None

    existed = False

    async def work(herd: "Herd") -> "ProjectView":
        nonlocal existed
        if change != "created":
            return await herd.set_project(by=by, **values)
        existed = (await herd.project_view()).created_at is not None
        return await herd.create_project(by=by, **values)

    return show_change(
        ctx,
        work,
        lambda view: f"project {view.project} {'already exists, unchanged' if existed else f'is {change}'}",
        project=name,
        output=output,
        create=True,
        operator=True,
    )
