"""Checks whether the broker stores messages, and measures the free space in the home's file systems."""

import asyncio
import time
from pathlib import Path
from typing import Final

from sandherd.bus.auth.permissions import probe_subject
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.storage_causes import Cause, cause_of, measure_home, shortages
from sandherd.concurrency import cancel_and_wait, sleep_aligned
from sandherd.telemetry import logs
from sandherd.telemetry.meters import Meters

PROBE_INTERVAL_SECONDS: Final = 3.0
_PROBE_TIMEOUT_SECONDS: Final = 5.0
MAX_UNACKNOWLEDGED_SECONDS: Final = 6.0
"""If no probe is acknowledged for this number of seconds, the broker counts as not storing."""
_PROBE_PAYLOAD: Final = b"." * 5000
_REASONS: Final = {
    Cause.DISK_BYTES: "its disk is full",
    Cause.DISK_INODES: "its file system is out of inodes",
    Cause.DESCRIPTORS: "it is out of file descriptors",
    Cause.MEMORY: "it is out of memory",
    Cause.READ_ONLY: "its disk is read-only",
}
_log: Final = logs.get("storage_watch")


def storage_problem(error: str, shortage_texts: list[str]) -> str:
    """The reason why the broker does not store, from its last error and the exhausted file systems. Pure."""
    cause = cause_of(error)
    reason = "; ".join(shortage_texts) or (
        _REASONS[cause] if cause else "its disk, descriptors or memory may be exhausted"
    )
    return f"the broker responds but does not store: {reason}. See docs/runbooks/SandherdBrokerNotStoring.md"


class StorageWatch:
    """Publishes a probe periodically. With `measured`, it also measures the file systems of the folders in `home`."""

    def __init__(self, service: str, home: Path, meters: Meters, *, measured: bool) -> None:
        self._subject = probe_subject(service)
        self._home = home
        self._meters = meters
        self._measured = measured
        self._shortages: list[str] = []
        self._error = ""
        self._failing_since: float | None = None
        self._logged = False

    async def watch(self, bus: Bus) -> None:
        """Probe and measure, until cancelled."""
        while True:
            await self._probe(bus)
            self._measure()
            self._report()
            await sleep_aligned(PROBE_INTERVAL_SECONDS)

    async def _probe(self, bus: Bus) -> None:
        if not bus.connected:
            self._failing_since = None  # the broker is unavailable: the health check of the connection reports it
            return
        started_at = time.monotonic()
        writing = asyncio.create_task(bus.js.publish(self._subject, _PROBE_PAYLOAD, timeout=_PROBE_TIMEOUT_SECONDS))
        try:
            # In a separate task: nats-py may swallow a cancellation, and stopping would take seconds.
            await asyncio.wait([writing])
            writing.result()
            self._failing_since, self._error = None, ""
        except BROKER_ERRORS as error:
            self._error = str(error)
            self._failing_since = self._failing_since or started_at
        finally:
            await cancel_and_wait([writing])

    def _measure(self) -> None:
        if not self._measured:
            return
        spaces = measure_home(self._home)
        self._shortages = shortages(spaces)
        for part, space in spaces.items():
            self._meters.set("sandherd_disk_free_bytes", space.free_bytes, folder=part)
            if space.free_inodes is not None:
                self._meters.set("sandherd_disk_free_inodes", space.free_inodes, folder=part)

    def _report(self) -> None:
        """Set the metric, and log each change once."""
        problem = self.problem() or self.warning()
        self._meters.set("sandherd_broker_store_failing", self.problem() is not None)
        if problem and not self._logged:
            _log.error("storage is exhausted", problem=problem)
        elif self._logged and not problem:
            _log.info("storage available again")
        self._logged = bool(problem)

    def problem(self) -> str | None:
        """The reason why the broker does not store messages, for readiness. None if it stores them."""
        if self._failing_since is None or time.monotonic() - self._failing_since < MAX_UNACKNOWLEDGED_SECONDS:
            return None
        return storage_problem(self._error, self._shortages)

    def warning(self) -> str | None:
        """The warning about full file systems, for `/readyz`; None if none is full."""
        return "; ".join(self._shortages) or None
