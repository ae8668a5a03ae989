"""Admission of new sandboxes, serialized over all replicas, so that no two take the last place.

The entry `spawner.admission` of the bucket `leases` names the sandbox that was admitted last. It is changed by
compare-and-set, so admissions have one order over all replicas. Each replica first waits until it knows the sandbox of
the previous admission, so that it counts all admitted sandboxes. A replica that crashes between an admission and the
creation of the record delays the others by `PATIENCE`; nothing has to be released.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import WRONG_LAST_SEQUENCE
from sandherd.bus.kv import revision_headers
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.sandboxes.sandbox_record import SandboxRecord


class CapacityCheck(Protocol):
    """Checks the limits of a project and a runtime."""

    def __call__(self, project: str, runtime: str, *, of_task: bool) -> str | None:
        """A text why there is no capacity for another sandbox, with or without a task; None if there is capacity."""


PATIENCE: Final = 3.0
"""Seconds to wait for the record of an admitted sandbox. Normally it is created within milliseconds."""
_STREAM: Final = "KV_leases"
_SUBJECT: Final = "$KV.leases.spawner.admission"
_ADMISSION_TTL: Final = "60s"
"""TTL of an admission, so that no replica waits for a sandbox that was created and removed long ago."""
_POLL_SECONDS: Final = 0.02


class Admission:
    """Admits sandboxes one at a time over all replicas. `check` decides by this replica's indexes."""

    def __init__(self, bus: Bus, live: LiveState, check: CapacityCheck, *, patience: float = PATIENCE) -> None:
        self._bus = bus
        self._live = live
        self._exhausted_limit = check
        self._patience = patience
        self._admission_lock = asyncio.Lock()
        self._own_revision: int | None = None
        """The revision of the last admission, if this replica wrote it and its sandbox is known here."""

    @asynccontextmanager
    async def admit(self, record: SandboxRecord) -> AsyncIterator[str | None]:
        """Yields None if there is capacity: the record must then be created inside. Otherwise yields the reason.

        Raises `StoreUnavailableError`.
        """
        async with self._admission_lock:
            exhausted, revision = await self._try_to_admit(record)
            if exhausted is None:
                self._own_revision = None
            yield exhausted
            self._own_revision = revision

    async def _try_to_admit(self, record: SandboxRecord) -> tuple[str | None, int | None]:
        """Why there is no capacity, or None and the revision of the admission."""
        while True:
            last = await self._wait_for_last_admission() if self._own_revision is None else self._own_revision
            if exhausted := self._exhausted_limit(record.project, record.runtime, of_task=record.task is not None):
                return exhausted, self._own_revision
            if (revision := await self._write(record.key, last)) is not None:
                return None, revision
            self._own_revision = None

    async def _wait_for_last_admission(self) -> int:
        """The revision of the last admission, once this replica knows all admitted sandboxes."""
        try:
            last = await self._bus.js.get_last_msg(_STREAM, _SUBJECT)
        except nats.js.errors.NotFoundError:
            last = RawStreamMsg(seq=0)
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"the last admission: {error!r}") from error
        await self._wait_for_record((last.data or b"").decode())
        await self._live.sandbox_index.catch_up(self._bus)
        return last.seq or 0

    async def _wait_for_record(self, key: str) -> None:
        """Wait until this record exists, for at most `patience` seconds; after that it is no longer expected."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while key and asyncio.get_running_loop().time() < deadline:
            if self._live.sandbox_index.get(key) or await self._live.sandboxes.load(key):
                return
            await asyncio.sleep(_POLL_SECONDS)

    async def _write(self, key: str, revision: int) -> int | None:
        """Write an admission after that with `revision`; returns its revision, or None if another one came first."""
        headers = revision_headers(revision, _ADMISSION_TTL)
        try:
            return (await self._bus.js.publish(_SUBJECT, key.encode(), headers=headers)).seq
        except nats.js.errors.APIError as error:
            if error.err_code == WRONG_LAST_SEQUENCE:
                return None
            raise StoreUnavailableError(f"admission of {key}: {error!r}") from error
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"admission of {key}: {error!r}") from error
