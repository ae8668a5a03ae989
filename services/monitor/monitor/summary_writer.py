"""Writes the summaries of sandboxes into their bucket, while the lease is held and all events have been read."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from monitor import sandbox_inspection, sandbox_summary
from monitor.facts import Key
from monitor.herd import Herd
from monitor.sandbox_state import SandboxActivity
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError
from sandherd.bus.lease import Lease
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.headers import LIFETIME
from sandherd.contracts.names import new_uuid
from sandherd.contracts.records import SandboxSummary
from sandherd.telemetry import logs

ENDED_TTL: Final = "604800s"
"""How long the summary of an ended sandbox stays: as long as its events."""
_PASS_INTERVAL_SECONDS: Final = 0.5
_PARALLEL_WRITES: Final = 50
_MAX_WRITES: Final = 500
"""Maximum number of writes in a pass, so that the watch is not delayed."""
_log: Final = logs.get("summaries")


class SummaryWriter:
    """Writes summaries while one lease is held."""

    def __init__(self, bus: Bus, lease: Lease) -> None:
        self._bus = bus
        self._lease = lease
        self._written_at: dict[Key, float] = {}
        self._written_contents: dict[Key, int] = {}
        self._is_failing = False

    async def run(self, herd: Herd, is_current: Callable[[], bool]) -> None:
        """Write changed summaries until the lease is lost. Raises `LeaseLostError`.

        Nothing is written before `is_current` returns true, because a summary may be older than the one in the bucket.
        """
        while True:
            await sleep_aligned(_PASS_INTERVAL_SECONDS)
            if is_current():
                await self.write(herd)

    async def write(self, herd: Herd) -> None:
        """Write the summaries that are due. A summary that can't be written is written later.

        Raises `LeaseLostError`.
        """
        if not self._bus.connected:  # a write would be sent after a reconnect, and overwrite a successor's
            return
        due = sandbox_summary.due_states(herd, self._written_at, time.monotonic(), _MAX_WRITES)
        for start in range(0, len(due), _PARALLEL_WRITES):
            self._lease.check()
            await self._write_batch(herd, due[start : start + _PARALLEL_WRITES])
        for key in self._written_at.keys() - herd.live.keys():
            del self._written_at[key]
            self._written_contents.pop(key, None)

    async def _write_batch(self, herd: Herd, states: Sequence[SandboxActivity]) -> None:
        for state in states:
            herd.changed.discard(state.key)
        results = await asyncio.gather(*(self._write(herd, state) for state in states), return_exceptions=True)
        for state, result in zip(states, results, strict=True):
            self._record_result(herd, state, result)

    def _record_result(self, herd: Herd, state: SandboxActivity, result: BaseException | None) -> None:
        if result is None:
            self._is_failing = False
            self._written_at[state.key] = time.monotonic()
            if herd.unwritten.get(state.key) is state:
                del herd.unwritten[state.key]
            return
        if not isinstance(result, BusError):
            raise result
        if state.key in herd.live:
            herd.changed.add(state.key)
        if not self._is_failing:
            _log.warning("summaries not written, retrying", error=repr(result))
        self._is_failing = True

    async def _write(self, herd: Herd, state: SandboxActivity) -> None:
        """Write one summary, unless its content is the same as at the last write. Raises `BusError`."""
        patterns = () if state.ended else sandbox_inspection.current_findings(state, herd.rules, state.last_sign_at)
        summary = sandbox_summary.summary_of(state, patterns)
        content = hash(summary.model_dump_json(exclude={"sequence", "updated_at"}))
        if not state.ended and self._written_contents.get(state.key) == content:
            return
        headers = {LIFETIME: ENDED_TTL} if state.ended else None
        await self._bus.publish(_subject(state), _document(summary), msg_id=str(new_uuid()), headers=headers)
        self._written_contents[state.key] = content


def _subject(state: SandboxActivity) -> str:
    return f"$KV.{SandboxSummary.bucket}.{state.project}.{state.sandbox}"


def _document(summary: SandboxSummary) -> bytes:
    return summary.model_dump_json(exclude_defaults=True).encode()
