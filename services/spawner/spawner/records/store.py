"""Records in a key-value bucket: created and changed by compare-and-set. Their events are published afterwards."""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import nats.js.errors
from nats.js.kv import KeyValue

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import StreamFullError
from sandherd.bus.kv import bucket_of, last_message, revision_headers
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.headers import KV_OPERATION
from sandherd.telemetry import logs
from spawner.records.base_record import Record, StoreUnavailableError, address_of
from spawner.records.outboxes import Outboxes
from spawner.records.vault import Vault

_MARKER_LIFE: Final = "3600s"
"""How long a removed key's delete marker stays, for watchers; without a TTL markers would fill the bucket."""
_MAX_RECENT: Final = 512
"""The maximum number of written records in memory."""
_log: Final = logs.get("records.store")

RecordT = TypeVar("RecordT", bound=Record)


@dataclass(frozen=True)
class StoredRecord(Generic[RecordT]):
    """A record as read or written, its revision, and its stored size in bytes."""

    record: RecordT
    revision: int
    size: int = 0


class RecordIndex(Protocol[RecordT]):
    """The required part of an index (`spawner.records.index.Index`)."""

    def update(self, held: StoredRecord[RecordT]) -> None:
        """Index a record that this process has written, so that the index always has the process's own writes."""

    def revision(self, key: str) -> int | None:
        """The newest known revision of a record, or None."""

    def writing(self, key: str) -> AbstractContextManager[None]:
        """A context in which this process writes the record."""


class Store(Generic[RecordT]):
    """The records of one bucket."""

    def __init__(
        self,
        bus: Bus,
        bucket: str,
        model: type[RecordT],
        index: RecordIndex[RecordT] | None = None,
        changed: Callable[[RecordT, RecordT], None] | None = None,
        *,
        vault: Vault | None = None,
        sole_writer: Callable[[], bool] = lambda: False,
    ) -> None:
        """`vault` encrypts the secrets of records; without it no record may have any.

        `index` gets every write; without it every record is read again before it is changed. `changed(before, after)`
        is called after a record was replaced. `sole_writer` returns whether this process will probably make the next
        write of a record: then that write also removes published events.
        """
        self._bus = bus
        self._bucket = bucket
        self._model = model
        self._index = index
        self._changed = changed
        self._vault = vault
        self._sole_writer = sole_writer
        self._outboxes = Outboxes()
        self._recent: OrderedDict[str, StoredRecord[RecordT]] = OrderedDict()
        self._locks: KeyedLocks[str] = KeyedLocks()

    async def load(self, key: str) -> StoredRecord[RecordT] | None:
        """The record, or None. Raises `StoreUnavailableError`."""
        held = await self.load_closed(key)
        return held and StoredRecord(await self._opened(held.record), held.revision, held.size)

    async def newest(self, key: str) -> StoredRecord[RecordT] | None:
        """Like `load`, but without a read if no write by another process is known since this process wrote the record.

        It may be older than a simultaneous write of another process, so writes that depend on it must be conditional.
        """
        return self._written_last(key) or await self.load(key)

    async def keys(self) -> frozenset[str]:
        """The keys of all records. Raises `StoreUnavailableError`."""
        prefix = f"$KV.{self._bucket}."
        try:
            state = (await self._bus.js.stream_info(f"KV_{self._bucket}", subjects_filter=">")).state
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{self._bucket}: {error!r}") from error
        return frozenset(subject.removeprefix(prefix) for subject in state.subjects or ())

    async def load_closed(self, key: str) -> StoredRecord[RecordT] | None:
        """The record without its secret part, or None. Raises `StoreUnavailableError`."""
        try:
            found = await last_message(self._bus, f"KV_{self._bucket}", f"$KV.{self._bucket}.{key}")
        except nats.js.errors.NotFoundError:
            return None
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{self._bucket} {key}: {error!r}") from error
        if KV_OPERATION in (found.headers or {}):  # removed: this is its delete marker
            return None
        document = found.data or b""
        return StoredRecord(self._model.model_validate_json(document), found.seq or 0, len(document))

    async def create(self, record: RecordT) -> tuple[StoredRecord[RecordT], bool]:
        """Write a new record, unless its key exists. Returns the stored record, and whether this call wrote it."""
        written = await self._write(record, 0)
        if written is not None:
            return written, True
        held = await self.load(record.key)
        if held is None:  # removed concurrently
            return await self.create(record)
        # If an acknowledgement was lost, the key exists by our own write: then outbox and source are equal.
        return held, held.record.outbox == record.outbox and held.record.source == record.source

    async def change(self, key: str, decide: Callable[[RecordT, int], RecordT]) -> StoredRecord[RecordT] | None:
        """Replace the record by the result of `decide(record, revision)`. On a conflict this is repeated.

        `decide` may be called several times. Nothing is written if it returns the same object. None if there is no
        record.
        """
        recent = self._written_last(key)
        if recent is not None:
            changed = decide(recent.record, recent.revision)
            written = await self.replace(recent, changed) if changed is not recent.record else None
            if written is not None:
                return written
        while True:  # only the stored record can show that nothing has to be changed
            held = await self.load(key)
            if held is None:
                return None
            record = decide(held.record, held.revision)
            if record is held.record:
                return held
            written = await self.replace(held, record)
            if written is not None:
                return written

    def _written_last(self, key: str) -> StoredRecord[RecordT] | None:
        """The record as this process wrote it last, unless a newer revision is known. It may have been replaced."""
        held = self._recent.get(key)
        return held if held and self._index is not None and held.revision == self._index.revision(key) else None

    async def replace(self, held: StoredRecord[RecordT], record: RecordT) -> StoredRecord[RecordT] | None:
        """Overwrite the record `held`; None if it was changed since it was read. Raises `StoreUnavailableError`."""
        written = await self._write(self._outboxes.cleared(record), held.revision)
        if written is None:
            return None
        if self._changed is not None:
            self._changed(held.record, record)
        if held.record.sealed and not (written.record.sealed and written.record.vault_key == held.record.vault_key):
            await self._erase_keys(held.record)
        return written

    async def flush(self, held: StoredRecord[RecordT]) -> StoredRecord[RecordT]:
        """Publish the record's outbox. Published events are removed now, or with the next write. Safe to repeat.

        Events that a full stream refuses stay in the outbox and are retried: a full stream must not prevent the end of
        a sandbox. Calls for the same record wait for each other: the broker stores no event twice, but core
        subscribers would receive it twice.
        """
        key = held.record.key
        async with self._locks.hold(key):
            latest = await self.newest(key) if held.record.outbox else held
            if latest is None or not latest.record.outbox:
                return latest or held
            published = await self._publish(latest.record, self._outboxes.pending(latest.record))
            if published:
                self._outboxes.add(key, published)
            return latest if self._sole_writer() or not published else await self._clear(key) or latest

    async def clear_outboxes(self) -> None:
        """Remove published events from records that are not written again, until cancelled."""
        while True:
            key = await self._outboxes.next_due()
            try:
                await self._clear(key)
            except StoreUnavailableError as error:
                _log.info("outbox not cleared, retrying", bucket=self._bucket, key=key, error=str(error))
                self._outboxes.postpone(key)

    async def clear_all(self) -> None:
        """Remove published events from all records, because this process ends."""
        for key in self._outboxes.keys():  # noqa: SIM118  # not a mapping
            try:
                await self._clear(key)
            except StoreUnavailableError as error:
                _log.info("outbox not cleared, retrying", bucket=self._bucket, key=key, error=str(error))
                return

    async def _clear(self, key: str) -> StoredRecord[RecordT] | None:
        held = await self.change(key, lambda record, _: self._outboxes.cleared(record))
        if held is None:
            self._outboxes.drop(key)
        elif self._index is None or self._index.revision(key) == held.revision:
            self._outboxes.written(held.record)  # another process may have cleared it
        return held

    async def _publish(self, record: RecordT, documents: Iterable[str]) -> list[str]:
        """Publish in order until the stream is full, and return what was published."""
        published: list[str] = []
        for document in documents:
            subject, id_ = address_of(document)
            try:
                await self._bus.publish_stored(subject, document.encode(), msg_id=id_, while_full=False)
            except StreamFullError as error:
                _log.warning(
                    "event not published, stays in outbox", bucket=self._bucket, key=record.key, error=str(error)
                )
                break
            published.append(document)
        return published

    async def remove(self, held: StoredRecord[RecordT]) -> bool:
        """Remove a record that is no longer needed, if it is unchanged. Returns whether it was removed."""
        headers = {
            KV_OPERATION: "PURGE",
            "Nats-Rollup": "sub",
            **revision_headers(held.revision, _MARKER_LIFE),
        }
        try:
            await self._bus.js.publish(f"$KV.{self._bucket}.{held.record.key}", b"", headers=headers)
        except BROKER_ERRORS as error:
            _log.info("record not deleted", bucket=self._bucket, key=held.record.key, error=repr(error))
            return False
        self._outboxes.drop(held.record.key)
        if held.record.sealed:
            await self._erase_keys(held.record)
        return True

    async def _write(self, record: RecordT, revision: int) -> StoredRecord[RecordT] | None:
        """Overwrite `revision` (0: must not exist). Returns the stored record, or None if another write was first."""
        stored = await self._sealed(record)
        value = stored.model_dump_json(exclude_defaults=True).encode()
        with nullcontext() if self._index is None else self._index.writing(record.key):
            written = await self._write_value(record.key, value, revision)
            if written is None:
                return None
            return self._note(StoredRecord(record.model_copy(update={"sealed": stored.sealed}), written, len(value)))

    async def _write_value(self, key: str, value: bytes, revision: int) -> int | None:
        try:
            if revision == 0:
                return await self._kv.create(key, value)
            return await self._kv.update(key, value, last=revision)
        except nats.js.errors.KeyWrongLastSequenceError:
            return None
        except BROKER_ERRORS as error:
            raise StoreUnavailableError(f"{self._bucket} {key}: {error!r}") from error

    async def _sealed(self, record: RecordT) -> RecordT:
        """The record as stored: with its secret part encrypted."""
        secret = record.secret_part()
        if secret is None:
            return record
        sealed = await self._keys.seal(self._named(record), secret)
        return record.without_secret_part().model_copy(update={"sealed": sealed})

    async def _opened(self, record: RecordT) -> RecordT:
        """The record as written; without its secret part if that part's key was erased."""
        if record.sealed is None:
            return record
        secret = await self._keys.open(self._named(record), record.sealed)
        return record if secret is None else record.with_secret_part(secret)

    async def _erase_keys(self, record: RecordT) -> None:
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

    def _note(self, held: StoredRecord[RecordT]) -> StoredRecord[RecordT]:
        if self._index is not None:
            self._index.update(held)
        self._outboxes.written(held.record)
        key = held.record.key
        self._recent.pop(key, None)
        if held.record.sealed is None:  # a secret must not stay in memory longer than needed
            self._recent[key] = held
        if len(self._recent) > _MAX_RECENT:
            self._recent.popitem(last=False)
        return held
