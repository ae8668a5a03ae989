"""Checks the dependencies of a task before it is submitted: with `--no-follow` its rejection would not be seen."""

import asyncio
from collections.abc import Iterable
from typing import Final

from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code

_PATIENCE: Final = 2.0
"""How long a task that another program has just submitted may be unknown, in seconds; the spawner waits as long."""
_AGAIN: Final = 0.2


async def require_dependencies(herd: Herd, names: Iterable[str]) -> None:
    """Raise `HerdError` for the first that does not exist. Without the services the decision is the spawner's."""
    deadline = asyncio.get_running_loop().time() + _PATIENCE
    for name in names:
        while not await _exists(herd, name):
            if asyncio.get_running_loop().time() >= deadline:
                raise _missing(name, herd.project)
            await asyncio.sleep(_AGAIN)


async def _exists(herd: Herd, name: str) -> bool:
    try:
        await herd.task(name)
    except ServiceUnavailableError:
        return True
    except HerdError as error:
        if error.problem.code is not Code.NOT_FOUND:
            raise
        return False
    return True


def _missing(name: str, project: str) -> HerdError:
    return HerdError.of(
        Code.INVALID_FIELD,
        f"--depends-on {name}: there is no task {name} in project {project}",
        field="depends_on",
        remedy="submit it first, and use its name from `sandherd tasks list`",
    )
