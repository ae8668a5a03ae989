"""The dispatcher over several tenures of its lease."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from message_relay.answer_router import LeftoverAnswer
from message_relay.dispatcher import Dispatcher
from message_relay.inbox import Inbox, Key
from message_relay.inbox_delivery import InboxDelivery
from sandherd.bus.connection import Bus
from sandherd.bus.lease import Lease
from tests.patience import PATIENCE
from tests.polling import eventually

KEY = ("p1", "sbx-1")


class Parts:
    """A bus without events, an empty inbox at each scan, and a delivery that notes which sandboxes it served."""

    def __init__(self) -> None:
        self.client = self
        self.reconnects = 0
        self.subscriptions = 0
        self.served: list[Key] = []

    async def subscribe(self, _subject: str, **_more: Any) -> Any:
        self.subscriptions += 1
        return self

    async def unsubscribe(self) -> None:
        self.subscriptions -= 1

    async def waiting_sandboxes(self) -> list[Key]:
        return []

    async def drain(self, key: Key, **_more: Any) -> LeftoverAnswer:
        self.served.append(key)
        return LeftoverAnswer.NOTHING


async def test_sandbox_is_served_after_an_unstarted_tenure() -> None:
    """A cancelled task that never ran leaves nothing that makes the next tenure take it for served."""
    parts = Parts()
    lease = cast("Lease", SimpleNamespace(held=True, check=lambda: None))
    dispatcher = Dispatcher(cast("Bus", parts), lease, cast("Inbox", parts), cast("InboxDelivery", parts))
    for tenure in range(2):
        running = asyncio.create_task(dispatcher.run())
        async with asyncio.timeout(PATIENCE):
            await eventually(lambda: parts.subscriptions > 0)
            asyncio.get_running_loop().call_soon(dispatcher.wake, KEY)  # in the turn in which the first tenure ends
            if tenure == 1:
                await eventually(lambda: parts.served == [KEY])
            running.cancel()
            await asyncio.wait([running])
    assert parts.served == [KEY]
