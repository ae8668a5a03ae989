"""Runs the sweep at start and periodically, on the replica that holds the lease."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.failures import ErrorType
from sandherd.telemetry import logs
from spawner.live_state import LiveState
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.gauges import SpawnerGauges
from spawner.sandboxes.inventory import list_runtimes
from spawner.sandboxes.orphans import OrphanCollector
from spawner.sandboxes.quarantine import Quarantine
from spawner.sandboxes.reconciler import FOR_NOW, SandboxReconciler
from spawner.sandboxes.sweep import SweepFindings, compare_records, unpublished
from spawner.sandboxes.unneeded_keys import UnneededKeys
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskRecord
from spawner.tasks.unsubmitted_uploads import UnsubmittedUploads

_RUNTIME_TIMEOUT_SECONDS: Final = 60.0
_log: Final = logs.get("sweeper")


class Sweeper:
    """Finds sandboxes that are not being reconciled: after a crash, a lost runtime, or a long time."""

    def __init__(
        self,
        live: LiveState,
        lease: Lease,
        reconciler: SandboxReconciler,
        *,
        collector: OrphanCollector,
        quarantine: Quarantine,
        runtimes: Mapping[str, Runtime],
        gauges: SpawnerGauges,
    ) -> None:
        self._live = live
        self._lease = lease
        self._reconciler = reconciler
        self._collector = collector
        self._quarantine = quarantine
        self._runtimes = runtimes
        self._gauges = gauges
        self._keys = UnneededKeys(live)
        self._uploads = UnsubmittedUploads(live)

    async def run(self, interval: float, keep: float) -> None:
        """Sweep until cancelled. Waits for all records first, because sandboxes would seem orphaned without them."""
        await asyncio.gather(self._live.task_index.complete.wait(), self._live.sandbox_index.complete.wait())
        while True:
            await self._wait_for_lease()
            try:
                await self.sweep(keep)
            except LeaseLostError as error:
                _log.info("lease lost to another replica", lease=str(error))
            except FOR_NOW as error:
                _log.warning("sweep not completed, retrying", error=repr(error))
            await sleep_aligned(interval)

    async def _wait_for_lease(self) -> None:
        if not self._lease.held:
            self._gauges.remove()
            await self._lease.wait_held()
        self._gauges.start()

    async def sweep(self, keep: float) -> None:
        """Sweep once. Raises `LeaseLostError` when another replica holds the lease."""
        inventory = await list_runtimes(self._runtimes, _RUNTIME_TIMEOUT_SECONDS)
        tasks, sandboxes = dict(self._live.task_index.items()), dict(self._live.sandbox_index.items())
        warm = {key for key, _ in self._live.pool_index.items()}
        now = self._live.now()
        findings = compare_records(
            tasks,
            sandboxes,
            inventory.sandboxes,
            now,
            keep=keep,
            quarantined=inventory.quarantined.keys(),
            warm=warm,
        )
        for key in findings.wake:
            self._reconciler.wake(key)
        for step in (
            partial(self._publish, *unpublished(tasks, sandboxes)),
            partial(self._fail_strays, findings, now),
            partial(self._collector.reconcile, findings.orphans, inventory.units, now),
            partial(self._erase_secrets, findings, now),
            partial(self._purge, findings),
            partial(self._uploads.delete, now),
            partial(self._quarantine.reconcile, inventory.quarantined, now),
        ):
            self._lease.check()
            await self._run_step(step)
        self._gauges.update()

    async def _run_step(self, step: Callable[[], Awaitable[None]]) -> None:
        """Run one part of a sweep. Its failure does not prevent the other parts; the next sweep retries it."""
        try:
            await step()
        except LeaseLostError:
            raise
        except FOR_NOW as error:
            _log.warning("sweep step failed, retrying at next sweep", error=repr(error))
        except Exception as error:  # noqa: BLE001  # one failure must not end the whole sweep
            _log.error("sweep step failed", exc_info=error)

    async def _publish(self, tasks: list[str], sandboxes: list[str]) -> None:
        for key in tasks:
            if task := await self._live.tasks.newest(key):
                await self._live.tasks.flush(task)
        for key in sandboxes:
            if sandbox := await self._live.sandboxes.newest(key):
                await self._live.flush_sandbox(sandbox)

    async def _fail_strays(self, findings: SweepFindings, now: datetime) -> None:
        for key in findings.strays:
            task = await self._live.tasks.load(key)
            if task is None or await self._live.sandboxes.load(f"{task.record.project}.{task.record.sandbox}"):
                continue
            await self._live.change_task(key, _without_sandbox(task.record.sandbox, now))

    async def _erase_secrets(self, findings: SweepFindings, now: datetime) -> None:
        for key in findings.expired_secrets:
            await self._live.change_task(key, lambda record: of_task.secrets_expired(record, now))
        await self._keys.erase()

    async def _purge(self, findings: SweepFindings) -> None:
        for key in findings.old_tasks:
            task = await self._live.tasks.load(key)
            if task and task.record.ended and await self._live.delete_task(task):
                _log.debug("task purged", key=key)
        for key in findings.old_sandboxes:
            sandbox = await self._live.sandboxes.load(key)
            if sandbox and sandbox.record.ended and await self._live.sandboxes.remove(sandbox):
                _log.debug("sandbox purged", key=key)


def _without_sandbox(sandbox: str | None, now: datetime) -> Callable[[TaskRecord], TaskRecord]:
    def decide(record: TaskRecord) -> TaskRecord:
        if record.ended or record.sandbox != sandbox:
            return record
        return of_task.attempt_failed(record, f"the record of {sandbox} no longer exists", ErrorType.SANDBOX_LOST, now)

    return decide
