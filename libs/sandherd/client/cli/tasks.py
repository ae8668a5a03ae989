"""`sandherd tasks`: list, get, cancel."""

from typing import TYPE_CHECKING, Annotated

import typer

from sandherd.client.cli.options import Cursor, Format, Limit, Output, Past, Project, TaskName, example, group
from sandherd.contracts.states import TaskState

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import TaskView

app = group("Tasks: list, get, cancel.", "sandherd tasks list")
HEADER = ("TASK", "STATE", "ATTEMPT", "SANDBOX", "SUBMITTED", "TEXT")
TEXT_WIDTH = 60


@app.command("list", epilog=example("sandherd tasks list --state running", "sandherd tasks list --past -o json"))
def list_tasks(  # one parameter per option
    ctx: typer.Context,
    *,
    state: Annotated[TaskState | None, typer.Option("--state", help="Only tasks in this state.")] = None,
    past: Past = False,
    limit: Limit = 100,
    cursor: Cursor = None,
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Tasks, newest first: those that live, and those that ended lately."""
    from sandherd.client.cli.printing import answer
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.tasks(state=state, limit=limit, cursor=cursor, past=past)
        document = {"tasks": found.items, "next_cursor": found.next_cursor, "from": found.origin}
        answer(output, document, HEADER, [_row(task) for task in found.items])
        return 0

    return talk(ctx, work, project=project)


@app.command("get", epilog=example("sandherd tasks get task-01kahc5x3tf8b9n2m4r6v8w0ya"))
def get_task(ctx: typer.Context, task: TaskName, project: Project = None, output: Output = Format.TABLE) -> int:
    """One task as it stands, or as it stood last."""
    from sandherd.client.cli.printing import document, facts
    from sandherd.client.cli.talking import talk

    async def work(herd: "Herd") -> int:
        found = await herd.task(task)
        if output is Format.JSON:
            document(found)
        else:
            facts(dict(found))
        return 0

    return talk(ctx, work, project=project)


@app.command("cancel", epilog=example('sandherd tasks cancel task-01kahc5x3tf8b9n2m4r6v8w0ya --reason "not needed"'))
def cancel_task(
    ctx: typer.Context,
    task: TaskName,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept with the task.")] = "",
    project: Project = None,
    output: Output = Format.TABLE,
) -> int:
    """Stop a task, wherever it is."""
    from sandherd.client.cli.printing import document
    from sandherd.client.cli.talking import standing, talk

    async def work(herd: "Herd") -> int:
        state = await standing(herd.task(task))
        await herd.cancel(task, reason=reason)
        if output is Format.JSON:
            document({"task": task, "asked": "cancel", "was": state})
        else:
            print(f"asked to cancel {task}, which was {state or 'not to be looked at: its services are away'}")
        return 0

    return talk(ctx, work, project=project)


def _row(task: "TaskView") -> list[object]:
    text = " ".join(task.text.split())
    text = text if len(text) <= TEXT_WIDTH else f"{text[: TEXT_WIDTH - 1]}…"
    return [task.task, task.state, task.attempt, task.sandbox, task.submitted_at, text]
