"""Admission: whoever makes a sandbox first puts its key where every replica looks, so that no two find the last place.

The entry `spawner.admission` of the bucket `leases` names the sandbox that was admitted last. It is changed by
compare-and-set, so admissions have one order over all replicas; and each replica first waits until it knows the
sandbox of the admission before, so it counts all that were admitted. One that dies between its admission and its
record holds the others up for `PATIENCE`; nothing is to be given back.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import nats.errors
import nats.js.errors
from nats.js.api import RawStreamMsg

from sandherd.bus.connection import Bus
from spawner.live import Live
from spawner.records.unavailable import StoreUnavailableError
from spawner.sandboxes.record import SandboxRecord

Lacking = Callable[[str, str], str | None]
"""Why there is no room for one more of this project in this runtime, in words; None if there is."""

PATIENCE: Final = 3.0
"""How long an admission may stand without its sandbox, in seconds. Its holder makes the record within milliseconds."""
_STREAM: Final = "KV_leases"
_SUBJECT: Final = "$KV.leases.spawner.admission"
_LIFE: Final = "60s"
"""How long an admission stays: what was made and removed long ago must not be waited for."""
_LOOK: Final = 0.02
_WRONG_LAST_SEQUENCE: Final = 10071
"""JSStreamWrongLastSequenceErrF of nats-server."""
_FAULTS: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)


class Admission:
    """Admits one sandbox after the other, over all replicas. `lacking` judges by what is known here."""

    def __init__(self, bus: Bus, live: Live, lacking: Lacking, *, patience: float = PATIENCE) -> None:
        self._bus = bus
        self._live = live
        self._lacking = lacking
        self._patience = patience
        self._one_at_a_time = asyncio.Lock()
        self._ours: int | None = None
        """The revision of the last admission, if it was ours and its sandbox is known here."""

    @asynccontextmanager
    async def admit(self, record: SandboxRecord) -> AsyncIterator[str | None]:
        """Yields None if there is room for it: its record is then to be made inside. Otherwise says why there is not.

        Raises `StoreUnavailableError`.
        """
        async with self._one_at_a_time:
            lacking, revision = await self._admitted(record)
            if lacking is None:
                self._ours = None
            yield lacking
            self._ours = revision

    async def _admitted(self, record: SandboxRecord) -> tuple[str | None, int | None]:
        """Why there is no room, or None and the revision of the admission."""
        while True:
            last = await self._last() if self._ours is None else self._ours
            if lacking := self._lacking(record.project, record.runtime):
                return lacking, self._ours
            if (revision := await self._write(record.key, last)) is not None:
                return None, revision
            self._ours = None

    async def _last(self) -> int:
        """The revision of the last admission, once everything that was admitted is known here."""
        try:
            last = await self._bus.js.get_last_msg(_STREAM, _SUBJECT)
        except nats.js.errors.NotFoundError:
            last = RawStreamMsg(seq=0)
        except _FAULTS as error:
            raise StoreUnavailableError(f"the last admission: {error!r}") from error
        await self._made((last.data or b"").decode())
        await self._live.sandbox_index.catch_up(self._bus)
        return last.seq or 0

    async def _made(self, key: str) -> None:
        """Return once there is this record, or nobody can be about to make it."""
        deadline = asyncio.get_running_loop().time() + self._patience
        while key and asyncio.get_running_loop().time() < deadline:
            if self._live.sandbox_index.get(key) or await self._live.sandboxes.load(key):
                return
            await asyncio.sleep(_LOOK)

    async def _write(self, key: str, revision: int) -> int | None:
        """Admit it after the admission of this revision. None if another was admitted meanwhile."""
        headers = {
            "Nats-Expected-Last-Subject-Sequence": str(revision),
            "Nats-TTL": _LIFE,
        }
        try:
            return (await self._bus.js.publish(_SUBJECT, key.encode(), headers=headers)).seq
        except nats.js.errors.APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                return None
            raise StoreUnavailableError(f"admission of {key}: {error!r}") from error
        except _FAULTS as error:
            raise StoreUnavailableError(f"admission of {key}: {error!r}") from error
