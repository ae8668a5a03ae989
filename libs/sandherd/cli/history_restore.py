"""Waits until a day of the history is restored."""

import asyncio
from typing import TYPE_CHECKING, Final

from sandherd.cli.status_line import StatusLine

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import HistoryRestore

_POLL_SECONDS: Final = 0.5


async def wait_restored(herd: "Herd", requested: "HistoryRestore") -> "HistoryRestore":
    """Wait until a restore is complete, or has a problem. Returns its state."""
    found = requested
    with StatusLine(f"restoring {requested.day}"):
        while found.done_at is None and found.problem is None:
            await asyncio.sleep(_POLL_SECONDS)
            restores = (await herd.history_status()).restores
            found = next((one for one in restores if _key(one) == _key(requested)), found)
    return found


def _key(history_restore: "HistoryRestore") -> tuple[object, object]:
    return history_restore.day, history_restore.project
