"""The bucket of messages' names. A name is claimed by compare-and-set, so that one command has it.

An entry expires by its time to live. A name is released by an entry without content, which expires soon.
"""

import time
from dataclasses import dataclass
from typing import Final

from message_relay.bucket_entries import read_entry, until_reply, write_entry
from message_relay.name_claims import NameClaim, Reservation, is_same
from sandherd.bus.connection import Bus
from sandherd.contracts.streams import BUCKETS

_BUCKET: Final = "messages"
_COUNTED_FOR: Final = 10.0
_COUNTED_FOR_EACH: Final = 0.002
"""How long a count of names is used, in seconds, and how much longer for each of them: 50,000 take 0.6 s to count."""
_RELEASED_TTL: Final = "60s"
_OVERHEAD: Final = 150
"""Bytes that an entry takes beside its subject and payload: its headers, and the broker's own fields."""


@dataclass(frozen=True, slots=True)
class NameEntry:
    """The claim to a name, None if it is free, and the revision of its entry."""

    claim: NameClaim | None
    revision: int


@dataclass(slots=True)
class NameUsage:
    """How many names a project has, with those claimed here since, and until when that is used."""

    names: int
    until: float


class MessageNames:
    """The names of all projects' messages. Waits for the broker as long as it takes."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._max_bytes = next(one.max_bytes for one in BUCKETS if one.name == _BUCKET)
        self._usage: dict[str, NameUsage] = {}
        self.fill = 0.0
        """The share of the bucket that was used when names were last counted, with what was written here since."""

    async def find(self, project: str, name: str) -> NameEntry:
        """The current claim to a name."""
        entry = await read_entry(self._bus, _BUCKET, _subject_of(project, name), NameClaim)
        return NameEntry(None, 0) if entry is None else NameEntry(entry.value, entry.revision)

    async def usage(self, project: str) -> NameUsage:
        """How many names the project has, with those claimed here since; counted again after 10 to 110 seconds."""
        found = self._usage.get(project)
        if found is None or time.monotonic() >= found.until:
            found = self._usage[project] = await self._count(project)
        return found

    async def claim(self, project: str, name: str, claim: NameClaim, over: NameEntry, reserved: Reservation) -> bool:
        """Claim a name. False if its entry was written first by another. Raises `StreamFullError`."""
        payload = claim.model_dump_json().encode()
        (await self.usage(project)).names += 1
        subject, ttl = _subject_of(project, name), f"{reserved.seconds}s"
        self.fill += (len(subject) + len(payload) + _OVERHEAD) / self._max_bytes
        written = await write_entry(self._bus, _BUCKET, subject, payload, over=over.revision, ttl=ttl, while_full=False)
        return written is not None

    async def release(self, project: str, name: str, claim: NameClaim) -> None:
        """Free a name that this claim has, as its message was not accepted."""
        entry = await self.find(project, name)
        if is_same(claim, entry.claim):
            subject = _subject_of(project, name)
            await write_entry(self._bus, _BUCKET, subject, b"", over=entry.revision, ttl=_RELEASED_TTL)

    async def _count(self, project: str) -> NameUsage:
        pattern = _subject_of(project, "*")
        info = await until_reply(_BUCKET, lambda: self._bus.js.stream_info(f"KV_{_BUCKET}", subjects_filter=pattern))
        now = time.monotonic()
        self._usage = {name: usage for name, usage in self._usage.items() if now < usage.until}
        self._max_bytes = info.config.max_bytes or self._max_bytes
        self.fill = info.state.bytes / self._max_bytes
        names = len(info.state.subjects or {})
        return NameUsage(names, now + _COUNTED_FOR + names * _COUNTED_FOR_EACH)


def _subject_of(project: str, name: str) -> str:
    return f"$KV.{_BUCKET}.{project}.{name}"
