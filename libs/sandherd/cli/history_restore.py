"""Waits until a day of the history is restored."""

import asyncio
from typing import TYPE_CHECKING, Final

from sandherd.cli.status_line import StatusLine

if TYPE_CHECKING:
    from sandherd.client.herd import Herd
    from sandherd.contracts.requests import HistoryRestore

_POLL_SECONDS: Final = 0.5


async def wait_until_restored(herd: "Herd", requested: "HistoryRestore") -> "HistoryRestore":
    """Wait until a restore is complete, or has a problem. Returns its state."""
    restore = requested
    with StatusLine(f"restoring {requested.day}"):
        while restore.done_at is None and restore.problem is None:
            await asyncio.sleep(_POLL_SECONDS)
            restores = (await herd.history_status()).restores
            restore = next((current for current in restores if _key(current) == _key(requested)), restore)
    return restore


def _key(history_restore: "HistoryRestore") -> tuple[object, object]:
    return history_restore.day, history_restore.project
