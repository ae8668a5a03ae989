"""`sandherd budgets`: list, show, grant, set. Only operators set the budgets of projects and the herd."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.cli.completion import task_names
from sandherd.cli.options import Format, Output, Project, example, group

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import BudgetList

app = group("Budgets: list, show, grant, set.", "sandherd budgets list")
_TASK = "task-01k2w0p6x8e3mb1y9c4hqn5dzr"


def _checked_task(name: str) -> str:
    from sandherd.client.errors import checked_name

    return checked_name(name, "task")


def _checked_project(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "project")


Task = Annotated[
    str, typer.Argument(metavar="TASK", help="The task.", callback=_checked_task, autocompletion=task_names)
]


@app.command("list", epilog=example("sandherd budgets list", "sandherd budgets list -o json"))
def list_budgets(ctx: typer.Context, project: Project = None, output: Output = Format.TABLE) -> int:
    """List the limits of the project and of its tasks, and the used amounts.

    An operator's credential lists the limits of all projects and of the herd. A `+` after an amount means that more was
    used, because some sandboxes did not report their use.
    """
    from sandherd.cli.herd_session import run_as_operator

    async def work(herd: "Herd") -> int:
        return _show(await herd.budgets(), output)

    return run_as_operator(ctx, work, project=project)


@app.command("show", epilog=example(f"sandherd budgets show {_TASK}", f"sandherd budgets show {_TASK} -o json"))
def show_budget(ctx: typer.Context, task: Task, project: Project = None, output: Output = Format.TABLE) -> int:
    """Show the limits of a task, and the amounts that its attempts have used together."""
    from sandherd.cli.herd_session import run_with_herd
    from sandherd.cli.name_prefixes import with_name

    find = with_name(task, "task", lambda herd, name: herd.budgets(name))

    async def work(herd: "Herd") -> int:
        return _show(await find(herd), output)

    return run_with_herd(ctx, work, project=project)


@app.command("grant", epilog=example(f"sandherd budgets grant {_TASK} cost=2usd,turns=20"))
def grant_budget(
    ctx: typer.Context,
    task: Task,
    more: Annotated[str, typer.Argument(metavar="LIMITS", help="How much more: cost=2usd,tokens=2m,turns=20.")],
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Grant a task more than its budget. An agent that was not stopped yet continues.

    A stopped task continues after `sandherd tasks retry`. The grant is refused for a completed task, and for
    a kind (cost, tokens, turns, wall_time) that the task's budget does not limit.
    """
    from sandherd.cli.herd_session import command_context, run_with_herd
    from sandherd.cli.name_prefixes import full_name, with_name
    from sandherd.client.context import holder

    credentials = command_context(ctx, project=project).credentials
    by = holder(credentials).name if credentials else None

    grant = with_name(task, "task", lambda herd, name: herd.grant_budget(name, more, by=by))

    async def work(herd: "Herd") -> int:
        _show(await grant(herd), output)
        await _warn_if_ended(herd, await full_name(herd, task, "task"))
        return 0

    return run_with_herd(ctx, work, project=project)


async def _warn_if_ended(herd: "Herd", task: str) -> None:
    """Print that an ended task needs a retry to use the granted amount."""
    from sandherd.cli.herd_session import target_state
    from sandherd.cli.stderr import print_error
    from sandherd.contracts.states import TASK_ENDED

    state = await target_state(herd.task(task))
    if state in TASK_ENDED:
        print_error(f"{task} is {state}: it can use the granted amount after `sandherd tasks retry {task}`")


@app.command(
    "set", epilog=example("sandherd budgets set web --day cost=50usd", "sandherd budgets set --month cost=2000usd")
)
def set_budget(
    ctx: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="The project [default: the herd].", callback=_checked_project),
    ] = None,
    *,
    day: Annotated[
        str | None, typer.Option("--day", metavar="LIMITS", help="Limits for the last 24 hours: cost=50usd,tokens=20m.")
    ] = None,
    month: Annotated[str | None, typer.Option("--month", metavar="LIMITS", help="Limits for the last 30 days.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Create the project if it does not exist.")] = False,
    output: Output = Format.TABLE,
) -> int:
    """Set the budget of a project, or of the herd. This needs an operator's credential.

    Limits that are not given are reset to those of the settings (`SANDHERD_BUDGETS`); `--day ""` resets all.
    """
    from sandherd.cli.herd_session import command_context, run_as_operator
    from sandherd.client.context import holder
    from sandherd.contracts.names import FLEET

    if day is None and month is None:
        raise _no_limit()
    credentials = command_context(ctx, project=name, role="operator").credentials
    by = holder(credentials).name if credentials else None

    async def work(herd: "Herd") -> int:
        return _show(await herd.set_budget(day=day or None, month=month or None, by=by), output)

    return run_as_operator(ctx, work, project=name or FLEET, create=create)


def _no_limit() -> Exception:
    from sandherd.client.errors import HerdError
    from sandherd.contracts.errors import Code

    remedy = 'give --day or --month, such as --day cost=50usd; --day "" resets all limits to those of the settings'
    return HerdError.of(Code.INVALID_FIELD, "there is no limit to set", field="limits", remedy=remedy)


def _show(budget_list: "BudgetList", output: Format) -> int:
    from sandherd.cli.render.budgets import HEADER, rows
    from sandherd.cli.render.console import print_list

    print_list(output, budget_list, HEADER, rows(budget_list.budgets), name=lambda row: str(row[1]))
    return 0
