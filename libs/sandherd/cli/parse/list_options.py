"""The options that select and sort tasks and sandboxes."""

from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer

from sandherd.cli.completion import batch_names, task_names
from sandherd.contracts.states import SandboxState, TaskState


class Sort(StrEnum):
    """The order of a list."""

    NEWEST = "newest"
    OLDEST = "oldest"
    NAME = "name"
    STATE = "state"


def _new_task(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "name", remedy="or omit --name for a generated name")


def _existing_task(name: str | None) -> str | None:
    from sandherd.client.errors import checked_name

    return None if name is None else checked_name(name, "task")


NewTaskName = Annotated[
    str | None,
    typer.Option(
        "--name",
        metavar="NAME",
        help="Name of the task: lower-case letters, digits and dashes [default: a generated one]. "
        "If the project has the same task with this name, that task is shown; another task with this name is refused.",
        callback=_new_task,
    ),
]
NewLabels = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Label of the task, to find it by; repeatable."),
]
LabelFilter = Annotated[
    list[str] | None,
    typer.Option("--label", metavar="KEY=VALUE", help="Only tasks with this label, or their sandboxes; repeatable."),
]
Batch = Annotated[
    str | None,
    typer.Option(
        "--batch",
        metavar="BATCH",
        help="Only tasks that were submitted in this batch.",
        autocompletion=batch_names,
    ),
]
TaskStates = Annotated[
    list[TaskState] | None, typer.Option("--state", help="Only tasks in this state; repeatable for several states.")
]
SandboxStates = Annotated[
    list[SandboxState] | None,
    typer.Option("--state", help="Only sandboxes in this state; repeatable for several states."),
]
SinceRequest = Annotated[
    str | None,
    typer.Option(
        "--since", metavar="WHEN", help="Only those requested since this time: 10m, 2h or 7d ago, or ISO 8601."
    ),
]
SortBy = Annotated[
    Sort, typer.Option("--sort", help="Order: by the time of the request (newest, oldest), by name, or by state.")
]
Watch = Annotated[
    bool,
    typer.Option(
        "--watch",
        "-w",
        help="Show the list again after each change on a terminal; with jsonl, print the changed items.",
    ),
]
WaitTimeout = Annotated[
    str | None, typer.Option("--timeout", metavar="TIME", help="Maximum time to wait: 90s, 10m, 2h [default: none].")
]
OptionalTaskName = Annotated[
    str | None,
    typer.Argument(
        metavar="[TASK]",
        help="A task's name, or its unique beginning (`task-` and at least 6 letters).",
        callback=_existing_task,
        autocompletion=task_names,
    ),
]


def list_filter(
    states: Sequence[TaskState | SandboxState], labels: Sequence[str], batch: str | None, since: str | None, sort: Sort
) -> dict[str, Any]:
    """The conditions and the order of a list, as arguments of its request. Raises `HerdError` for an invalid option."""
    from sandherd.cli.parse.labels import selector
    from sandherd.cli.parse.times import moment

    return {
        "states": list(states),
        "labels": selector(labels, batch),
        "since": moment(since, datetime.now(UTC)),
        "sort": sort.value,
    }


def waiting_seconds(timeout: str | None) -> float | None:
    """The maximum time to wait, in seconds; None if there is no maximum. Raises `HerdError`."""
    from sandherd.cli.parse.units import positive_duration

    return None if timeout is None else positive_duration(timeout, "--timeout")
