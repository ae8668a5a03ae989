"""Commands of one sandbox are handled in the order in which they came, those of others meanwhile."""

import asyncio
from typing import Any, cast

from message_relay.taking import Taking

Never = cast("Any", None)


async def test_the_turns_of_one_sandbox_come_in_order_and_hold_nobody_else_up() -> None:
    """While the first of a is at work, the second of a waits, and b goes on; afterwards nothing is remembered."""
    taking = Taking(Never, Never, Never, Never, lambda _key: None)
    log: list[str] = []
    release = asyncio.Event()

    async def work(name: str, key: tuple[str, str], *, waits: bool) -> None:
        async with taking._in_order(key):
            log.append(f"{name} begins")
            if waits:
                await release.wait()
            log.append(f"{name} ends")

    async with asyncio.TaskGroup() as group:
        group.create_task(work("a1", ("p", "a"), waits=True))
        group.create_task(work("a2", ("p", "a"), waits=False))
        b = group.create_task(work("b1", ("p", "b"), waits=False))
        await b
        release.set()
    assert log == ["a1 begins", "b1 begins", "b1 ends", "a1 ends", "a2 begins", "a2 ends"]
    assert taking._turns == {}
