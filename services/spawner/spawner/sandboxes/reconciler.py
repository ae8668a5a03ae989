"""Reconciles every sandbox until it has ended: decides the next step, runs it, and repeats."""

import asyncio
from datetime import datetime
from typing import Final

import nats.errors
import nats.js.errors

from sandherd.bus.connection import BusError
from sandherd.bus.identity.revocation import RevocationFailedError
from sandherd.bus.lease import LeaseLostError
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.requests import SandboxView
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.runtimes.contract import RuntimeFailedError
from spawner.sandboxes.fenced_writes import LeaseState
from spawner.sandboxes.step_runner import StepRunner
from spawner.tasks.task_record import TaskFacts

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
"""Transient errors; the next sweep retries."""
_MIN_DELAY_SECONDS: Final = 0.05
_log: Final = logs.get("reconciler")


class SandboxReconciler:
    """One coroutine for each sandbox that has something to do, and none for the others.

    Only the replica with the lease reconciles. If it crashes, the next one finds its unfinished work.
    """

    def __init__(self, live: LiveState, lease: LeaseState, steps: StepRunner) -> None:
        self._live = live
        self._lease = lease
        self._steps = steps
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._wake_again: set[str] = set()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        live.sandbox_index.on_change(self._on_sandbox)
        live.task_index.on_change(self._on_task)

    def wake(self, key: str) -> None:
        """Reconcile this sandbox now: there may be something to do for it."""
        if self._closed or not self._lease.held:
            return
        if key in self._tasks:
            self._wake_again.add(key)
            return
        task = asyncio.get_running_loop().create_task(self._reconcile(key), name=f"sandbox {key}")
        self._tasks[key] = task
        task.add_done_callback(lambda _: self._end_reconcile(key))

    def wake_unit(self, unit: str) -> None:
        """Call `wake` for the sandbox with this unit, its unique name in its runtime."""
        for key, known in self._live.sandbox_index.items():
            if known.runtime_unit == unit:
                self.wake(key)

    async def close(self) -> None:
        """Stop reconciling; the next start finds and finishes what was begun."""
        for timer in self._timers.values():
            timer.cancel()
        self._closed = True
        await cancel_and_wait(list(self._tasks.values()))

    def _on_sandbox(self, key: str, _view: SandboxView) -> None:
        self.wake(key)

    def _on_task(self, _key: str, task: TaskFacts) -> None:
        for sandbox in (task.sandbox, task.left):
            if sandbox:
                self.wake(f"{task.project}.{sandbox}")

    def _end_reconcile(self, key: str) -> None:
        del self._tasks[key]
        if key in self._wake_again:
            self._wake_again.discard(key)
            self.wake(key)

    async def _reconcile(self, key: str) -> None:
        timer = self._timers.pop(key, None)
        if timer:
            timer.cancel()
        try:
            until = await self._steps.run(key)
        except LeaseLostError as error:
            # Another replica reconciles now. It is an error only if our own lease is still held.
            (_log.error if self._lease.held else _log.info)("left to another replica", sandbox=key, error=str(error))
        except FOR_NOW as error:
            _log.warning("sandbox not reconciled, retrying at next sweep", sandbox=key, error=repr(error))
        except Exception as error:  # noqa: BLE001  # one sandbox must not end the reconciler of all; it is retried
            _log.error("sandbox not reconciled", sandbox=key, exc_info=error)
        else:
            self._wake_at(key, until)

    def _wake_at(self, key: str, until: datetime | None) -> None:
        if until is not None:
            wait = max(_MIN_DELAY_SECONDS, (until - self._live.now()).total_seconds())
            self._timers[key] = asyncio.get_running_loop().call_later(wait, self.wake, key)
