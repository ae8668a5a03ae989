"""Shares the partitions among replicas.

Each announces itself, reads which leases the others hold, and takes or releases some.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

from monitor.partition_plan import LAYOUT_LEASE, PartitionId, PartitionTable, layout_value, plan, replica_key, table_of
from sandherd.bus.broker_errors import READ_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import StoredMessage, read_batch
from sandherd.bus.lease import Lease
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.headers import KV_OPERATION, LIFETIME
from sandherd.telemetry import logs

TTL: Final = 5.0
"""Seconds after which the leases of a killed replica's partitions expire."""
_LAYOUT_TTL: Final = 3.0
"""Seconds after which the layout lease and the announcement of a killed replica expire. It is shorter than `TTL`: when
the partitions of that replica are free, it is no longer counted as a replica, and the layout lease has another
holder."""
_CHECK_SECONDS: Final = 1.0
"""Seconds between two checks of the leases; also the timeout of an announcement."""
_STREAM: Final = "KV_leases"
_SUBJECT_PREFIX: Final = "$KV.leases."
_MONITOR_SUBJECTS: Final = f"{_SUBJECT_PREFIX}monitor.>"
_MAX_KEYS: Final = 4096
_MAX_UNHELD_SECONDS: Final = 3 * TTL
"""Seconds after which readiness reports a partition that no replica was seen to hold."""
Hold = Callable[[PartitionId, Lease], Awaitable[None]]
_log: Final = logs.get("shares")


class PartitionShares:
    """This replica's share of `count` partitions. `hold` runs for each partition while its lease is held."""

    def __init__(self, bus: Bus, instance: str, count: int, hold: Hold) -> None:
        self._bus = bus
        self._instance = instance
        self._count = count
        self._hold = hold
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._leases: dict[int, Lease] = {}
        self._seen_at = dict.fromkeys(range(count), time.monotonic())
        self._seen_layout: int | None = None
        self.layout = Lease(bus, LAYOUT_LEASE, layout_value(instance, count), _LAYOUT_TTL)
        """One replica holds this lease for all replicas with the same number of partitions."""

    @property
    def held(self) -> int:
        """The number of partitions that this replica holds."""
        return sum(lease.held for lease in self._leases.values())

    def problem(self) -> str | None:
        """For readiness: partitions that no replica was seen to hold for three times the time to live of a lease."""
        now = time.monotonic()
        unheld = [number for number, seen in self._seen_at.items() if now - seen > _MAX_UNHELD_SECONDS]
        if not unheld or self.warning() is not None:
            return None
        return f"no replica was seen to hold partition {', '.join(map(str, unheld))} of {self._count}"

    def warning(self) -> str | None:
        """The warning that replicas with another number of partitions are watching; None if there are none.

        It does not affect readiness, because a rolling update waits until each new replica is ready.
        """
        if self._seen_layout in {None, self._count}:
            return None
        return f"a replica with {self._seen_layout or 'no'} partitions still runs, and this one has {self._count}"

    async def run(self) -> None:
        """Take and release partitions until cancelled. Raises what `hold` raises."""
        await self.layout.run_with(self._share())

    async def _share(self) -> None:
        try:
            while True:
                try:
                    await self._announce()
                    await self._apply_plan(await self._read_table())
                except READ_ERRORS as error:
                    _log.warning("leases not read, retrying", error=repr(error))
                    await asyncio.sleep(_CHECK_SECONDS)
                await self._wait()
        finally:
            await self._withdraw()
            await cancel_and_wait(self._tasks.values())

    async def _wait(self) -> None:
        """Wait for some time, or until a lease is acquired or lost. Raises what `hold` raised."""
        waits = [asyncio.ensure_future(sleep_aligned(_CHECK_SECONDS))]
        if self._seen_layout is None:
            waits.append(asyncio.ensure_future(self.layout.wait_held()))
        try:
            await asyncio.wait([*waits, *self._tasks.values()], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for number, task in list(self._tasks.items()):
            if task.done():
                del self._tasks[number], self._leases[number]
                task.result()

    # --- the table of leases -----------------------------------------------------------------------------------

    async def _read_table(self) -> PartitionTable:
        messages = await read_batch(
            self._bus, _STREAM, _MONITOR_SUBJECTS, first=1, limit=_MAX_KEYS, max_bytes=4 * 1024 * 1024
        )
        valid = (message for message in messages if _is_valid(message))
        table = table_of({message.subject.removeprefix(_SUBJECT_PREFIX): message.data.decode() for message in valid})
        self.record_holders(table)
        return table

    def record_holders(self, table: PartitionTable) -> None:
        """Record for readiness which partitions have a holder."""
        self._seen_layout, now = table.layout, time.monotonic()
        for number in range(self._count):
            if PartitionId(self._count, number) in table.holders:
                self._seen_at[number] = now

    async def _announce(self) -> None:
        await self._publish_key(b"1", {LIFETIME: f"{round(_LAYOUT_TTL)}s"})

    async def _withdraw(self) -> None:
        """Delete the announcement of this replica, so that others take over immediately."""
        with suppress(*READ_ERRORS):
            if self._bus.connected:
                await self._publish_key(b"", {KV_OPERATION: "DEL", LIFETIME: "1s"})

    async def _publish_key(self, payload: bytes, headers: dict[str, str]) -> None:
        subject = f"{_SUBJECT_PREFIX}{replica_key(self._instance, self._count)}"
        await self._bus.js.publish(subject, payload, timeout=_CHECK_SECONDS, headers=headers)

    # --- taking and releasing ----------------------------------------------------------------------------------

    async def _apply_plan(self, table: PartitionTable) -> None:
        planned = plan(self._instance, self._count, table)
        untaken = [number for number, lease in self._leases.items() if not lease.held and number not in planned.take]
        await self._release([*planned.release, *untaken])
        for number in planned.take:
            if number not in self._tasks:
                partition_id = PartitionId(self._count, number)
                lease = self._leases[number] = Lease(self._bus, partition_id.lease, self._instance, TTL)
                self._tasks[number] = asyncio.create_task(
                    self._take_partition(partition_id, lease), name=partition_id.lease
                )

    async def _take_partition(self, partition_id: PartitionId, lease: Lease) -> None:
        async def work() -> None:
            await lease.wait_held()
            await self._hold(partition_id, lease)

        await lease.run_with(work())

    async def _release(self, numbers: list[int]) -> None:
        """Release these partitions: the state of each is saved before its lease is released."""
        tasks = [self._tasks[number] for number in numbers if number in self._tasks]
        await cancel_and_wait(tasks)
        for number in numbers:
            self._tasks.pop(number, None)
            self._leases.pop(number, None)

    # --- requests ----------------------------------------------------------------------------------------------

    async def check_unwatched(self, number: int) -> None:
        """Check a request for a partition that this replica does not watch.

        Returns if another replica replies, or may reply. Raises `ContractError` if no replica replies at present.
        """
        try:
            table = await self._read_table()
        except READ_ERRORS:
            return
        holder = table.holders.get(PartitionId(self._count, number))
        if table.layout not in {None, self._count} or holder not in {None, self._instance}:
            return
        message = (
            "the monitor still reads past events"
            if holder
            else f"no replica of the monitor watches partition {number} of {self._count}, to which the sandbox belongs"
        )
        raise ContractError(Code.BUSY, message, remedy="try again in some seconds; then check the herd")


def _is_valid(message: StoredMessage) -> bool:
    """Whether a message has a value and a time to live, as leases and announcements have."""
    return bool(message.data) and KV_OPERATION not in message.headers and LIFETIME in message.headers
