"""Messages that expire while they wait in the program for a place in its turn: they are taken back."""

import asyncio
import time
from typing import Any, Final

from sandherd_drivers.claude.hearing import Hearing
from sandherd_drivers.commands import EXPIRED

_ANSWERING: Final = 2.0
"""How long the program may take to say whether it still had the message, in seconds."""


class Deadlines:
    """Those of one session."""

    def __init__(self, client: Any, hearing: Hearing) -> None:
        self._client, self._hearing = client, hearing
        self._withdrawing: set[asyncio.Task[None]] = set()

    def watch(self, uuid: str, expires_at: float) -> None:
        """Take this back then, if the agent has not taken it."""
        asyncio.get_running_loop().call_later(max(0.0, expires_at - time.time()), self._look, uuid)

    def _look(self, uuid: str) -> None:
        if self._hearing.awaits(uuid):
            task = asyncio.create_task(self._withdraw(uuid))
            self._withdrawing.add(task)
            task.add_done_callback(self._withdrawing.discard)

    async def _withdraw(self, uuid: str) -> None:
        """What the program no longer has is on its way to the model, and its receipt is on its way to us."""
        request = {"subtype": "cancel_async_message", "message_uuid": uuid}
        try:
            query = self._client._query  # noqa: SLF001  # the program answers this, but the SDK has no name for it yet
            answer = await query._send_control_request(request, _ANSWERING)  # noqa: SLF001  # neither has its query
        except Exception:  # noqa: BLE001  # the SDK says by a bare one that there was no answer
            return
        if answer.get("cancelled"):
            self._hearing.refuse(uuid, EXPIRED)
