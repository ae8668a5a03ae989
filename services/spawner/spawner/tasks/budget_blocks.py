"""Reads the monitor's record of the projects that are over budget. None of their tasks begins."""

from typing import Final

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.kv import read_record
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.names import FLEET
from sandherd.contracts.records import BudgetBlocks
from sandherd.telemetry import logs
from spawner.tasks.task_queue import TaskQueue

NAME: Final = "blocked"
_READ_ERRORS: Final = (*BROKER_ERRORS, ValueError)
_log: Final = logs.get("budget_blocks")


class BudgetBlockReader:
    """Reads the record at an interval, because a service that only reads a bucket may not watch it."""

    def __init__(self, bus: Bus, queue: TaskQueue, interval: float) -> None:
        self._bus = bus
        self._queue = queue
        self._interval = interval
        self._last_blocks = BudgetBlocks()

    async def run(self) -> None:
        """Read the record every `interval` seconds, until cancelled."""
        while True:
            await sleep_aligned(self._interval)
            await self.read()

    async def read(self) -> None:
        """Read the record once, and update the queue. If it can't be read, the last one remains in effect."""
        try:
            found = await read_record(self._bus, BudgetBlocks, FLEET, NAME) or BudgetBlocks()
        except _READ_ERRORS as error:
            _log.warning("projects over budget not read, retrying", error=repr(error))
            return
        if found != self._last_blocks:
            self._last_blocks = found
            self._queue.change_blocks(found)
