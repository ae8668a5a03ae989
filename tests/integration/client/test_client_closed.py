"""A client is used after its context has ended."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest

from sandherd.client import Context, Herd, HerdError, task_spec
from sandherd.contracts.errors import Code
from tests.patience import PATIENCE

Neighbours = Any


async def first(items: Any) -> Any:
    return await anext(items)


async def entered(context: Any) -> None:
    async with context:
        pass


USES: Final[tuple[Callable[[Herd], Awaitable[Any]], ...]] = (
    lambda herd: herd.tasks(),
    lambda herd: herd.task("task-one"),
    lambda herd: herd.submit(task_spec("x", ["true"])),
    lambda herd: herd.cancel("task-one"),
    lambda herd: herd.exec("sbx-one", ["true"]),
    lambda herd: first(herd.events(task="task-one")),
    lambda herd: entered(herd.follow(task="task-one")),
    lambda herd: herd.wait("task-one"),
)


async def test_client_after_its_context_says_that_it_is_closed(context: Context, neighbours: Neighbours) -> None:
    """The error states that the client is closed, and neither a missing service nor a stored command."""
    async with Herd.connect(context, patience=PATIENCE) as herd:
        await herd.tasks()
    for use in USES:
        with pytest.raises(HerdError, match=r"^the connection is closed$") as raised:
            await use(herd)
        assert raised.value.problem.code is Code.UNAVAILABLE
        assert raised.value.problem.remedy == "connect again"
