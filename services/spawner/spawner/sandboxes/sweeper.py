"""Runs the sweep at start and every few seconds, on the replica that holds the lease."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Final

from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.failures import ErrorType
from sandherd.telemetry import logs
from spawner.live import Live
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.keeper import FOR_NOW, Keeper
from spawner.sandboxes.kept import Kept
from spawner.sandboxes.looking import look_at_all
from spawner.sandboxes.measuring import Measures
from spawner.sandboxes.orphans import Ward
from spawner.sandboxes.sweep import Findings, look_over, unsaid
from spawner.sandboxes.unneeded_keys import UnneededKeys
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord

_TIMEOUT: Final = 60.0
_log: Final = logs.get("sweeper")


class Sweeper:
    """Finds what nobody is leading: after a crash, after a lost runtime, after a long time."""

    def __init__(
        self,
        live: Live,
        lease: Lease,
        keeper: Keeper,
        *,
        ward: Ward,
        kept: Kept,
        runtimes: Mapping[str, Runtime],
        measures: Measures,
    ) -> None:
        self._live = live
        self._lease = lease
        self._keeper = keeper
        self._ward = ward
        self._kept = kept
        self._runtimes = runtimes
        self._measures = measures
        self._keys = UnneededKeys(live)

    async def run(self, interval: float, keep: float) -> None:
        """Sweep until cancelled; the records must be known before the first pass, or all would look like orphans."""
        await asyncio.gather(self._live.task_index.complete.wait(), self._live.sandbox_index.complete.wait())
        while True:
            await self._wait_held()
            try:
                await self.sweep(keep)
            except LeaseLostError as error:
                _log.info("left to another", lease=str(error))
            except FOR_NOW as error:
                _log.warning("sweep not finished", error=repr(error))
            await asyncio.sleep(interval)

    async def _wait_held(self) -> None:
        if not self._lease.held:
            self._measures.leave()
            await self._lease.wait_held()
        self._measures.begin()

    async def sweep(self, keep: float) -> None:
        """One pass. Raises `LeaseLostError` when it is another's turn."""
        there = await look_at_all(self._runtimes, _TIMEOUT)
        tasks, sandboxes = dict(self._live.task_index.items()), dict(self._live.sandbox_index.items())
        pooled = {key for key, _ in self._live.pool_index.items()}
        now = self._live.now()
        findings = look_over(tasks, sandboxes, there.seen, now, keep=keep, kept=there.kept.keys(), pooled=pooled)
        for key in findings.wake:
            self._keeper.wake(key)
        for step in (
            partial(self._publish, *unsaid(tasks, sandboxes)),
            partial(self._fail_strays, findings, now),
            partial(self._ward.tend, findings.orphans, there.units, now),
            partial(self._forget_secrets, findings, now),
            partial(self._purge, findings),
            partial(self._kept.tend, there.kept, now),
        ):
            self._lease.check()
            await self._do(step)
        self._measures.take()

    async def _do(self, step: Callable[[], Awaitable[None]]) -> None:
        """One part of a pass. What goes wrong in it keeps no other from being done; the next pass tries it again."""
        try:
            await step()
        except LeaseLostError:
            raise
        except FOR_NOW as error:
            _log.warning("a part of the sweep is left for the next", error=repr(error))
        except Exception as error:  # noqa: BLE001  # one stubborn thing must not end the sweep of all
            _log.error("a part of the sweep went wrong", exc_info=error)

    async def _publish(self, tasks: list[str], sandboxes: list[str]) -> None:
        for key in tasks:
            await self._live.change_task(key, lambda record: record)
        for key in sandboxes:
            await self._live.change_sandbox(key, lambda record: record)

    async def _fail_strays(self, findings: Findings, now: datetime) -> None:
        for key in findings.strays:
            task = await self._live.tasks.load(key)
            if task is None or await self._live.sandboxes.load(f"{task.record.project}.{task.record.sandbox}"):
                continue
            await self._live.change_task(key, _without_sandbox(task.record.sandbox, now))

    async def _forget_secrets(self, findings: Findings, now: datetime) -> None:
        for key in findings.expired_secrets:
            await self._live.change_task(key, lambda record: of_task.secrets_expired(record, now))
        await self._keys.erase()

    async def _purge(self, findings: Findings) -> None:
        for key in findings.old_tasks:
            task = await self._live.tasks.load(key)
            if task and task.record.ended and await self._live.tasks.remove(task):
                _log.debug("task purged", key=key)
        for key in findings.old_sandboxes:
            sandbox = await self._live.sandboxes.load(key)
            if sandbox and sandbox.record.ended and await self._live.sandboxes.remove(sandbox):
                _log.debug("sandbox purged", key=key)


def _without_sandbox(sandbox: str | None, now: datetime) -> Callable[[TaskRecord], TaskRecord]:
    def decide(record: TaskRecord) -> TaskRecord:
        if record.ended or record.sandbox != sandbox:
            return record
        return of_task.attempt_failed(record, f"the record of {sandbox} is gone", ErrorType.SANDBOX_LOST, now)

    return decide
