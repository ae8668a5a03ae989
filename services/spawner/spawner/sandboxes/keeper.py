"""Leads every sandbox to its end: asks what is to be done next, has it done, and asks again."""

import asyncio
from datetime import datetime
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import BusError
from sandherd.bus.identity.revoking import RevocationFailedError
from sandherd.bus.lease import LeaseLostError
from sandherd.bus.together import end
from sandherd.contracts.requests import SandboxView
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.records.unavailable import StoreUnavailableError
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes.leading import HeldLease
from spawner.sandboxes.steps import Steps
from spawner.tasks.record import TaskFacts

FOR_NOW: Final = (
    StoreUnavailableError,
    RuntimeFailedError,
    RevocationFailedError,
    BusError,
    nats.errors.Error,
    nats.js.errors.Error,
    TimeoutError,
    OSError,
)
"""What passes by itself; the next sweep tries again."""
_SOON: Final = 0.05
_log: Final = logs.get("keeper")


class Keeper:
    """One coroutine for each sandbox that has something to be done, and none for the others.

    Only one replica leads: the one with the lease. What it was about to do when it died is found by the next.
    """

    def __init__(self, live: Live, lease: HeldLease, steps: Steps) -> None:
        self._live = live
        self._lease = lease
        self._steps = steps
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        live.sandbox_index.on_change(self._on_sandbox)
        live.task_index.on_change(self._on_task)

    def wake(self, key: str) -> None:
        """Something may be to do for this sandbox."""
        if self._closed or not self._lease.held:
            return
        if key in self._tasks:
            self._again.add(key)
            return
        task = asyncio.get_running_loop().create_task(self._lead(key), name=f"sandbox {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._done(key))

    def wake_unit(self, unit: str) -> None:
        """The same, by what its runtime knows it by: no two have the same."""
        for key, known in self._live.sandbox_index.items():
            if known.alias == unit:
                self.wake(key)

    async def close(self) -> None:
        """Lead no more; whatever was begun is found and finished by the next start."""
        for timer in self._timers.values():
            timer.cancel()
        self._closed = True
        await end(list(self._tasks.values()))

    def _on_sandbox(self, key: str, _view: SandboxView) -> None:
        self.wake(key)

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        for sandbox in (task.sandbox, task.left):
            if sandbox:
                self.wake(f"{task.project}.{sandbox}")

    def _done(self, key: str) -> None:
        del self._tasks[key]
        if key in self._again:
            self._again.discard(key)
            self.wake(key)

    async def _lead(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer:
            timer.cancel()
        try:
            until = await self._steps.lead(key)
        except LeaseLostError as error:
            # Another leads since. Only where our own lease says otherwise is something wrong.
            (_log.error if self._lease.held else _log.info)("left to another", sandbox=key, error=str(error))
        except FOR_NOW as error:
            _log.warning("left for the next sweep", sandbox=key, error=repr(error))
        except Exception as error:  # noqa: BLE001  # one sandbox must not end the keeper of all; it is tried again
            _log.error("a sandbox could not be led on", sandbox=key, exc_info=error)
        else:
            self._wake_at(key, until)

    def _wake_at(self, key: str, until: datetime | None) -> None:
        if until is not None:
            wait = max(_SOON, (until - self._live.now()).total_seconds())
            self._timers[key] = asyncio.get_running_loop().call_later(wait, self.wake, key)
