"""Gives waiting tasks their sandboxes, as soon as one is submitted or a place is free; one replica at a time."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from sandherd.bus.lease import Lease
from sandherd.contracts.requests import SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED, TaskState
from sandherd.telemetry import logs
from spawner.live import Live, task_key
from spawner.records.store import StoreUnavailableError
from spawner.sandboxes import decisions as of_sandbox
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord
from spawner.tasks.scheduling import next_tasks, sandbox_name

_log: Final = logs.get("scheduler")


class Scheduler:
    """Runs while it holds its lease. `assigned(sandbox key)` is told of each sandbox that is to be made."""

    def __init__(self, live: Live, lease: Lease, limit: int, assigned: Callable[[str], None], interval: float) -> None:
        self._live = live
        self._lease = lease
        self._limit = limit
        self._assigned = assigned
        self._interval = interval
        self._wake = asyncio.Event()
        live.task_index.on_change(self._on_task)
        live.sandbox_index.on_change(self._on_sandbox)

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.gather(self._live.task_index.complete.wait(), self._live.sandbox_index.complete.wait())
        while True:
            self._live.meters.set("sandherd_lease_held", float(self._lease.held), lease=self._lease.key)
            await self._lease.wait_held()
            self._live.meters.set("sandherd_lease_held", 1, lease=self._lease.key)
            self._wake.clear()
            try:
                await self.tick()
            except StoreUnavailableError as error:
                _log.warning("nothing assigned", error=str(error))
            await self._rest()

    async def tick(self) -> None:
        """Assign what there is room for."""
        for view in next_tasks(self._live.pending(), self._live.living(), self._limit):
            if not self._lease.held:
                return
            await self._assign(view)

    async def _assign(self, view: TaskView) -> None:
        """Intent first: the sandbox's record, then the task that names it, and only then is a runtime asked."""
        held = await self._live.tasks.load(task_key(view))
        if held is None or held.record.state is not TaskState.PENDING:
            return
        now = self._live.now()
        sandbox, _ = await self._live.sandboxes.create(
            of_sandbox.requested(held.record, sandbox_name(held.record), now)
        )

        def decide(task: TaskRecord) -> TaskRecord:
            waits = task.state is TaskState.PENDING and task.attempt == sandbox.record.attempt
            return of_task.assigned(task, sandbox.record.sandbox, now) if waits else task

        await self._live.change_task(held.record.key, decide, publish=False)
        # Made first, told after: what it says goes out while the worker starts.
        self._assigned(sandbox.record.key)

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes together with what it waits for.
            async with asyncio.timeout(self._interval):
                await self._wake.wait()

    def _on_task(self, _key: str, view: TaskView) -> None:
        if view.state is TaskState.PENDING:
            self._wake.set()

    def _on_sandbox(self, _key: str, view: SandboxView) -> None:
        if view.state in SANDBOX_ENDED:
            self._wake.set()
