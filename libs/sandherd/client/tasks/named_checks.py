"""Checks tasks of a file before they are sent. Errors name the task as in the file, and no command line options."""

from collections.abc import Awaitable, Callable, Mapping

from sandherd.client.errors import HerdError
from sandherd.contracts.labels import NAME_LABEL
from sandherd.contracts.specs import TaskSpec


async def check_each(check: Callable[[TaskSpec], Awaitable[None]], tasks: Mapping[str, TaskSpec]) -> None:
    """Check all tasks. Raises `HerdError` for the first one that the herd would reject."""
    for task, spec in tasks.items():
        await check_named(check, spec, spec.labels.get(NAME_LABEL, task))


async def check_named(check: Callable[[TaskSpec], Awaitable[None]], spec: TaskSpec, name: str) -> None:
    """Check one task. Raises `HerdError` with its `name`; the remedy names a field of the file, and not an option."""
    try:
        await check(spec)
    except HerdError as error:
        problem = error.problem
        changes: dict[str, str] = {"message": f"{name}: {problem.message}"}
        if problem.field and " --" in (problem.remedy or ""):
            changes["remedy"] = f"change its field `{problem.field.removeprefix('spec.')}`; see `sandherd runtimes`"
        raise HerdError(problem.model_copy(update=changes)) from None
