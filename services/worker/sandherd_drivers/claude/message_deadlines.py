"""Withdraws messages that expire while they wait in the program for a turn."""

import asyncio
import time
from typing import Any, Final

from sandherd_drivers.claude.turn_tracker import TurnTracker
from sandherd_drivers.commands import EXPIRED

_REPLY_SECONDS: Final = 2.0
"""How long the program may take to reply whether it still had the message, in seconds."""


class MessageDeadlines:
    """The deadlines of one session."""

    def __init__(self, client: Any, tracker: TurnTracker) -> None:
        self._client, self._tracker = client, tracker
        self._withdrawals: set[asyncio.Task[None]] = set()

    def watch(self, uuid: str, expires_at: float) -> None:
        """Withdraw this message at its expiry, if the agent has not taken it."""
        asyncio.get_running_loop().call_later(max(0.0, expires_at - time.time()), self._check, uuid)

    def _check(self, uuid: str) -> None:
        if self._tracker.is_waiting(uuid):
            task = asyncio.create_task(self._withdraw(uuid))
            self._withdrawals.add(task)
            task.add_done_callback(self._withdrawals.discard)

    async def _withdraw(self, uuid: str) -> None:
        """Withdraw and refuse this message. If the program has passed it to the model already, its receipt follows."""
        request = {"subtype": "cancel_async_message", "message_uuid": uuid}
        try:
            query = self._client._query  # noqa: SLF001  # the program supports this request, but the SDK has no public method for it yet
            reply = await query._send_control_request(request, _REPLY_SECONDS)  # noqa: SLF001  # as above
        except Exception:  # noqa: BLE001  # the SDK raises a plain `Exception` if there is no reply
            return
        if reply.get("cancelled"):
            self._tracker.refuse(uuid, EXPIRED)
