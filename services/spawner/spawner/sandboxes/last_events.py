"""Tracks which ended sandboxes have events that are not handled yet: saved commits may be among these events."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.errors import BusError
from sandherd.contracts.requests import SandboxView
from sandherd.telemetry import logs
from spawner.records.base_record import StoreUnavailableError

Handled = Callable[[str], None]
"""Receives the key of a task whose sandbox has ended, once all events of the sandbox are handled."""
SAVED_WITHIN: Final = timedelta(seconds=30)
"""How long after the end of an attempt its saved commits may still be received."""
_RETRY_SECONDS: Final = 1.0
_log: Final = logs.get("sandboxes")


class LastEvents:
    """Tracks ended sandboxes until the broker confirms that their events are handled, or `SAVED_WITHIN` has passed."""

    def __init__(self, settled: Callable[[], Awaitable[bool]]) -> None:
        """`settled`: whether every event that the broker had at the time of the call was handled."""
        self._settled = settled
        self._listeners: list[Handled] = []
        self._ended: dict[str, SandboxView] = {}
        """Ended sandboxes whose events are not known to be handled, by key."""
        self._handled: dict[str, datetime] = {}
        """The end time of each sandbox whose events are handled, by key."""
        self._wake = asyncio.Event()

    def on_handled(self, callback: Handled) -> None:
        """Call `callback(task)` from now on when no more events of a sandbox of this task are expected."""
        self._listeners.append(callback)

    def change(self, key: str, sandbox: SandboxView) -> None:
        """Update a sandbox to its current state."""
        if sandbox.ended_at is not None and sandbox.task is not None and key not in self._handled:
            self._ended[key] = sandbox
            self._wake.set()

    def are_handled(self, key: str, sandbox: SandboxView | None, now: datetime) -> bool:
        """Whether a sandbox has ended and no more of its events are expected; True if it has no record."""
        if sandbox is None:
            return True
        at = sandbox.ended_at
        return at is not None and (now >= at + SAVED_WITHIN or self._handled.get(key) == at)

    async def run(self, now: Callable[[], datetime]) -> None:
        """Check whenever a sandbox has ended, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not await self.check(now()):
                await asyncio.sleep(_RETRY_SECONDS)
                self._wake.set()

    async def check(self, now: datetime) -> bool:
        """Check once; returns whether the events of all ended sandboxes are handled."""
        waiting = dict(self._ended)
        confirmed = (
            await self._are_all_handled() if any(not _is_overdue(view, now) for view in waiting.values()) else False
        )
        for key, view in waiting.items():
            if confirmed or _is_overdue(view, now):
                self._release(key, view)
        self._handled = {key: at for key, at in self._handled.items() if now < at + SAVED_WITHIN}
        return not self._ended

    async def _are_all_handled(self) -> bool:
        try:
            return await self._settled()
        except (*BROKER_ERRORS, StoreUnavailableError, BusError) as error:
            _log.warning("events of ended sandboxes not checked, retrying", error=repr(error))
            return False

    def _release(self, key: str, view: SandboxView) -> None:
        self._ended.pop(key, None)
        if view.ended_at is not None:
            self._handled[key] = view.ended_at
        for callback in self._listeners:
            callback(f"{view.project}.{view.task}")


def _is_overdue(view: SandboxView, now: datetime) -> bool:
    return view.ended_at is not None and now >= view.ended_at + SAVED_WITHIN
