"""The bucket of webhooks. Each entry is updated by compare-and-set: by requests, and by the webhook's delivery."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import nats.js.errors

from message_relay.bucket_entries import read_entry, until_available, write_entry
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.bus.connection import Bus
from sandherd.bus.direct_get import read_batch
from sandherd.bus.errors import WRONG_LAST_SEQUENCE
from sandherd.bus.kv import revision_headers
from sandherd.contracts.headers import KV_OPERATION

BUCKET: Final = "webhooks"
_STREAM: Final = f"KV_{BUCKET}"
_SUBJECT: Final = f"$KV.{BUCKET}"
_DELETE_MARKER_TTL: Final = "60s"
"""How long the marker of a deleted webhook stays, so that every replica can read it."""
_MAX_BATCH_CHANGES: Final = 100
_MAX_BATCH_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class StoredWebhook:
    """A webhook as it was read or written, and its revision."""

    record: WebhookRecord
    revision: int


@dataclass(frozen=True, slots=True)
class WebhookChange:
    """A change of an entry: its key, its revision, and the number of its last edit; None if the webhook was deleted."""

    key: str
    edit: int | None
    revision: int


class WebhookStore:
    """Reads and writes webhooks. Unless stated otherwise, it retries without limit while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def load(self, key: str) -> StoredWebhook | None:
        """The webhook of a key, `<project>.<name>`, or None."""
        entry = await read_entry(self._bus, BUCKET, f"{_SUBJECT}.{key}", WebhookRecord)
        return None if entry is None or entry.value is None else StoredWebhook(entry.value, entry.revision)

    async def create(self, record: WebhookRecord) -> StoredWebhook | None:
        """Store a new webhook. Returns None if there is a webhook of its name."""
        entry = await read_entry(self._bus, BUCKET, f"{_SUBJECT}.{record.key}", WebhookRecord)
        if entry is not None and entry.value is not None:
            return None
        return await self._write(record, entry.revision if entry else 0)

    async def write(self, record: WebhookRecord, over: StoredWebhook) -> StoredWebhook | None:
        """Write a webhook if the entry is still `over`. Returns None if another write came first."""
        return await self._write(record, over.revision)

    async def change(self, key: str, change: Callable[[WebhookRecord], WebhookRecord]) -> StoredWebhook | None:
        """Apply a change to a stored webhook, and retry after a conflict. Returns None if there is no such webhook."""
        while (stored := await self.load(key)) is not None:
            written = await self.write(change(stored.record), stored)
            if written is not None:
                return written
        return None

    async def delete(self, key: str) -> WebhookRecord | None:
        """Delete a webhook. Returns its last record; None if there was none."""
        while (stored := await self.load(key)) is not None:
            if await self._remove(key, stored.revision):
                return stored.record
        return None

    async def keys(self, project: str) -> list[str]:
        """The keys of a project's webhooks, also of some that were just deleted. `*` means all projects."""
        pattern = f"{_SUBJECT}.{project}.*"
        info = await until_available(BUCKET, lambda: self._bus.js.stream_info(_STREAM, subjects_filter=pattern))
        return sorted(subject.removeprefix(f"{_SUBJECT}.") for subject in info.state.subjects or {})

    async def all(self, project: str) -> list[StoredWebhook]:
        """The webhooks of a project, in the order of their names. `*` means all projects."""
        found = [await self.load(key) for key in await self.keys(project)]
        return [one for one in found if one is not None]

    async def changes(self, after: int) -> list[WebhookChange]:
        """The changes after this revision, the oldest first. Only the last change of each webhook is included.

        Raises nats-py's errors while the broker is unavailable.
        """
        found = await read_batch(
            self._bus, _STREAM, f"{_SUBJECT}.>", first=after + 1, limit=_MAX_BATCH_CHANGES, max_bytes=_MAX_BATCH_BYTES
        )
        return [
            WebhookChange(one.subject.removeprefix(f"{_SUBJECT}."), _edit_of(one.data), one.sequence) for one in found
        ]

    async def _write(self, record: WebhookRecord, over: int) -> StoredWebhook | None:
        payload = record.model_dump_json(exclude_defaults=True).encode()
        revision = await write_entry(self._bus, BUCKET, f"{_SUBJECT}.{record.key}", payload, over=over)
        return None if revision is None else StoredWebhook(record, revision)

    async def _remove(self, key: str, over: int) -> bool:
        headers = {KV_OPERATION: "DEL"} | revision_headers(over, _DELETE_MARKER_TTL)

        async def publish() -> bool:
            try:
                await self._bus.js.publish(f"{_SUBJECT}.{key}", b"", headers=headers)
            except nats.js.errors.APIError as error:
                if error.err_code == WRONG_LAST_SEQUENCE:
                    return False
                raise
            return True

        return await until_available(BUCKET, publish)


def _edit_of(data: bytes) -> int | None:
    return WebhookRecord.model_validate_json(data).edit if data else None
