"""The bucket with the names of messages. A name is claimed by compare-and-set, so that only one command gets it.

Entries have a time to live. A name is released by overwriting its entry with an empty one, which expires soon.
"""

import time
from dataclasses import dataclass
from typing import Final

from message_relay.bucket_entries import read_entry, until_available, write_entry
from message_relay.name_claims import NameClaim, Reservation, is_same
from sandherd.bus.connection import Bus
from sandherd.contracts.streams import BUCKETS

_BUCKET: Final = "messages"
_COUNT_VALID_SECONDS: Final = 10.0
_COUNT_SECONDS_PER_NAME: Final = 0.002
"""Seconds for which a count of names is used, and the seconds added for each name, because to count 50,000 names takes
0.6 s."""
_RELEASED_TTL: Final = "60s"
_ENTRY_OVERHEAD_BYTES: Final = 150
"""Bytes of an entry in addition to its subject and payload: its headers, and the broker's own fields."""


@dataclass(frozen=True, slots=True)
class NameEntry:
    """The entry of a name: the claim to it, or None if the name is free, and its revision."""

    claim: NameClaim | None
    revision: int


@dataclass(slots=True)
class NameUsage:
    """The number of a project's names, plus those claimed here since, and the monotonic second of the next count."""

    names: int
    until: float


class MessageNames:
    """Claims and releases names of messages. Retries without limit while the broker is unavailable."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._max_bytes = next(one.max_bytes for one in BUCKETS if one.name == _BUCKET)
        self._usage: dict[str, NameUsage] = {}
        self.fill = 0.0
        """The used share of the bucket when names were last counted, and what was written here since."""

    async def find(self, project: str, name: str) -> NameEntry:
        """The current entry of a name."""
        entry = await read_entry(self._bus, _BUCKET, _subject_of(project, name), NameClaim)
        return NameEntry(None, 0) if entry is None else NameEntry(entry.value, entry.revision)

    async def usage(self, project: str) -> NameUsage:
        """The number of a project's names, with those claimed here since. Counted again after 10 to 110 seconds."""
        found = self._usage.get(project)
        if found is None or time.monotonic() >= found.until:
            found = self._usage[project] = await self._count(project)
        return found

    async def claim(self, project: str, name: str, claim: NameClaim, over: NameEntry, reserved: Reservation) -> bool:
        """Claim a name. Returns False if another command has written the entry first. Raises `StreamFullError`."""
        payload = claim.model_dump_json().encode()
        (await self.usage(project)).names += 1
        subject, ttl = _subject_of(project, name), f"{reserved.seconds}s"
        self.fill += (len(subject) + len(payload) + _ENTRY_OVERHEAD_BYTES) / self._max_bytes
        written = await write_entry(self._bus, _BUCKET, subject, payload, over=over.revision, ttl=ttl, while_full=False)
        return written is not None

    async def release(self, project: str, name: str, claim: NameClaim) -> None:
        """Release a name that this claim has, because its message was not accepted."""
        entry = await self.find(project, name)
        if is_same(claim, entry.claim):
            subject = _subject_of(project, name)
            await write_entry(self._bus, _BUCKET, subject, b"", over=entry.revision, ttl=_RELEASED_TTL)

    async def _count(self, project: str) -> NameUsage:
        pattern = _subject_of(project, "*")
        info = await until_available(
            _BUCKET, lambda: self._bus.js.stream_info(f"KV_{_BUCKET}", subjects_filter=pattern)
        )
        now = time.monotonic()
        self._usage = {name: usage for name, usage in self._usage.items() if now < usage.until}
        self._max_bytes = info.config.max_bytes or self._max_bytes
        self.fill = info.state.bytes / self._max_bytes
        names = len(info.state.subjects or {})
        return NameUsage(names, now + _COUNT_VALID_SECONDS + names * _COUNT_SECONDS_PER_NAME)


def _subject_of(project: str, name: str) -> str:
    return f"$KV.{_BUCKET}.{project}.{name}"
