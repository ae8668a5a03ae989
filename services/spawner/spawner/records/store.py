"""Records in a bucket of the broker: read, made and changed by compare-and-set, their events published after."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import nats.errors
import nats.js.errors
from nats.js.kv import KeyValue

from sandherd.bus.connection import Bus
from sandherd.bus.errors import StreamFullError
from sandherd.bus.reading import bucket_of, last_on
from sandherd.telemetry import logs
from spawner.records.record import Record, read_said
from spawner.records.unavailable import StoreUnavailableError
from spawner.records.vault import Vault
from spawner.turns import Turns

_MARKER_LIFE: Final = "3600s"
"""How long the mark of a removed key stays, for those who watch; without an end the marks would fill the bucket."""
_log: Final = logs.get("records")

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True)
class Held(Generic[RecordT]):
    """A record as it was read or written, the revision it has there, and its bytes there."""

    record: RecordT
    revision: int
    size: int = 0


class Store(Generic[RecordT]):
    """One bucket. Every write tells `heard`, so that an index of it is never behind its own process."""

    def __init__(
        self,
        bus: Bus,
        bucket: str,
        model: type[RecordT],
        heard: Callable[[Held[RecordT]], None],
        changed: Callable[[RecordT, RecordT], None] | None = None,
        *,
        vault: Vault | None = None,
    ) -> None:
        """`vault` is for records with secrets: without it there may be none."""
        self._bus = bus
        self._bucket = bucket
        self._model = model
        self._heard = heard
        self._changed = changed
        self._vault = vault
        self._turns = Turns()

    async def load(self, key: str) -> Held[RecordT] | None:
        """The record, or None. Raises `StoreUnavailableError`."""
        held = await self.load_closed(key)
        return held and Held(await self._opened(held.record), held.revision, held.size)

    async def keys(self) -> frozenset[str]:
        """The keys of all records. Raises `StoreUnavailableError`."""
        prefix = f"$KV.{self._bucket}."
        try:
            state = (await self._bus.js.stream_info(f"KV_{self._bucket}", subjects_filter=">")).state
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            raise StoreUnavailableError(f"{self._bucket}: {error!r}") from error
        return frozenset(subject.removeprefix(prefix) for subject in state.subjects or ())

    async def load_closed(self, key: str) -> Held[RecordT] | None:
        """The record without its secret part, or None. Raises `StoreUnavailableError`."""
        try:
            found = await last_on(self._bus, f"KV_{self._bucket}", f"$KV.{self._bucket}.{key}")
        except nats.js.errors.NotFoundError:
            return None
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            raise StoreUnavailableError(f"{self._bucket} {key}: {error!r}") from error
        if "KV-Operation" in (found.headers or {}):  # it was removed, and left a mark
            return None
        document = found.data or b""
        return Held(self._model.model_validate_json(document), found.seq or 0, len(document))

    async def create(self, record: RecordT) -> tuple[Held[RecordT], bool]:
        """Write a new record, unless its key is there. Returns what stands there then, and whether it is ours."""
        written = await self._write(record, 0)
        if written is not None:
            return self._note(written), True
        held = await self.load(record.key)
        if held is None:  # removed in this very moment
            return await self.create(record)
        # An acknowledgement that was lost looks like another's record; ours says exactly what we said.
        return held, held.record.outbox == record.outbox and held.record.source == record.source

    async def change(self, key: str, decide: Callable[[RecordT, int], RecordT]) -> Held[RecordT] | None:
        """Replace the record by what `decide(record, revision)` makes of it; again on the newer one if it had changed.

        `decide` may be called several times; returning the same object changes nothing. None if there is no record.
        """
        while True:
            held = await self.load(key)
            if held is None:
                return None
            record = decide(held.record, held.revision)
            if record is held.record:
                return held
            written = await self.replace(held, record)
            if written is not None:
                return written

    async def replace(self, held: Held[RecordT], record: RecordT) -> Held[RecordT] | None:
        """Write over what was read, or None if another has changed it since. Raises `StoreUnavailableError`."""
        written = await self._write(record, held.revision)
        if written is None:
            return None
        if self._changed is not None:
            self._changed(held.record, record)
        if held.record.sealed and not (written.record.sealed and written.record.vault_key == held.record.vault_key):
            await self._forget(held.record)
        return self._note(written)

    async def flush(self, held: Held[RecordT]) -> Held[RecordT]:
        """Publish what the record says and has not published, then note that. Safe to repeat.

        What a full stream refuses stays in the outbox for another time: a sandbox must be ended all the same.

        One at a time for each record: the broker keeps no event twice, but who listens along would hear it twice.
        """
        async with self._turns.of(held.record.key):
            latest = await self.load(held.record.key) if held.record.outbox else held
            if latest is None or not latest.record.outbox:
                return latest or held
            published = await self._publish(latest.record)
            if not published:
                return latest
            cleared = await self.change(latest.record.key, lambda record, _: _cleared(record, published))
            return cleared or latest

    async def _publish(self, record: RecordT) -> frozenset[str]:
        """Publish in order as far as the stream has room, and return what was published."""
        published: list[str] = []
        for document in record.outbox:
            try:
                await self._bus.publish_event(read_said(document), while_full=False)
            except StreamFullError as error:
                _log.warning("not said yet", bucket=self._bucket, key=record.key, error=str(error))
                break
            published.append(document)
        return frozenset(published)

    async def remove(self, held: Held[RecordT]) -> bool:
        """Remove a record that nobody needs any more, if it is still as it was. Returns whether it was removed."""
        headers = {
            "KV-Operation": "PURGE",
            "Nats-Rollup": "sub",
            "Nats-TTL": _MARKER_LIFE,
            "Nats-Expected-Last-Subject-Sequence": str(held.revision),
        }
        try:
            await self._bus.js.publish(f"$KV.{self._bucket}.{held.record.key}", b"", headers=headers)
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            _log.info("not removed", bucket=self._bucket, key=held.record.key, error=repr(error))
            return False
        if held.record.sealed:
            await self._forget(held.record)
        return True

    async def _write(self, record: RecordT, revision: int) -> Held[RecordT] | None:
        """Write over `revision` (0: there must be none). Returns what is held then, or None if another was first."""
        stored = await self._sealed(record)
        value = stored.model_dump_json(exclude_defaults=True).encode()
        try:
            if revision == 0:
                written = await self._kv.create(record.key, value)
            else:
                written = await self._kv.update(record.key, value, last=revision)
            return Held(record.model_copy(update={"sealed": stored.sealed}), written, len(value))
        except nats.js.errors.KeyWrongLastSequenceError:
            return None
        except (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError) as error:
            raise StoreUnavailableError(f"{self._bucket} {record.key}: {error!r}") from error

    async def _sealed(self, record: RecordT) -> RecordT:
        """The record as it is stored: what is secret in it encrypted."""
        secret = record.secret_part()
        if secret is None:
            return record
        sealed = await self._keys.seal(self._named(record), secret)
        return record.without_secret_part().model_copy(update={"sealed": sealed})

    async def _opened(self, record: RecordT) -> RecordT:
        """The record as it was written; without what is secret if the key of that is gone."""
        if record.sealed is None:
            return record
        secret = await self._keys.open(self._named(record), record.sealed)
        return record if secret is None else record.with_secret_part(secret)

    async def _forget(self, record: RecordT) -> None:
        await self._keys.erase(self._named(record))

    def _named(self, record: RecordT) -> str:
        return f"{self._bucket}.{record.vault_key}"

    @property
    def _keys(self) -> Vault:
        if self._vault is None:
            raise RuntimeError(f"a record in {self._bucket} has secrets, and there is no vault for their keys")
        return self._vault

    @property
    def _kv(self) -> KeyValue:
        return bucket_of(self._bus.js, self._bucket)

    def _note(self, held: Held[RecordT]) -> Held[RecordT]:
        self._heard(held)
        return held


def _cleared(record: RecordT, published: frozenset[str]) -> RecordT:
    return record.without(published) if published.intersection(record.outbox) else record
