"""Checks the dependencies of a task before its submission: with `--no-follow` a user would not see the rejection."""

import asyncio
from collections.abc import Iterable
from typing import Final

from sandherd.client.errors import HerdError, ServiceUnavailableError
from sandherd.client.herd import Herd
from sandherd.contracts.errors import Code

_PATIENCE_SECONDS: Final = 2.0
"""How long a dependency may be unknown, in seconds: another program may just have submitted it. The spawner waits as
long."""
_POLL_SECONDS: Final = 0.2


async def require_dependencies(herd: Herd, names: Iterable[str]) -> None:
    """Raise `HerdError` for the first task that does not exist.

    If services are unavailable, tasks count as existing: the spawner checks the dependencies later.
    """
    deadline = asyncio.get_running_loop().time() + _PATIENCE_SECONDS
    for name in names:
        while not await _exists(herd, name):
            if asyncio.get_running_loop().time() >= deadline:
                raise _missing(name, herd.project)
            await asyncio.sleep(_POLL_SECONDS)


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
