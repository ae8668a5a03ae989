"""Deletes uploads whose task was never submitted, because the upload was interrupted or the client ended."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.names import SANDBOX_PREFIX, UPLOAD_PREFIX
from sandherd.contracts.repositories import SHARED_BUNDLES
from spawner.live_state import LiveState

LIFE: Final = timedelta(hours=1)
"""How long an upload for a task without a record is stored after its last chunk was found."""
_EVERY: Final = timedelta(minutes=10)


@dataclass(frozen=True)
class _Found:
    chunks: int
    at: datetime


class UnsubmittedUploads:
    """Remembers, for each upload without a task, its number of chunks and when that number was first found.

    This is only in memory: in a new replica the lifetime of each upload begins again.
    """

    def __init__(self, live: LiveState) -> None:
        self._live = live
        self._found: dict[str, _Found] = {}
        self._next: datetime | None = None

    async def delete(self, now: datetime) -> None:
        """Delete uploads without a task whose number of chunks is unchanged for `LIFE`. Checks every ten minutes."""
        if self._next is not None and now < self._next:
            return
        self._next = now + _EVERY
        stored = await self._live.uploads()
        self._found = {
            subject: self._since(subject, chunks, now)
            for subject, chunks in stored.items()
            if (key := _task_key(subject)) is not None and self._live.task_index.get(key) is None
        }
        for subject, found in list(self._found.items()):
            if now - found.at >= LIFE and await self._live.tasks.load(_task_key(subject) or "") is None:
                await self._live.delete_upload(subject)

    def _since(self, subject: str, chunks: int, now: datetime) -> _Found:
        before = self._found.get(subject)
        return before if before is not None and before.chunks == chunks else _Found(chunks, now)


def _task_key(subject: str) -> str | None:
    """The key of the task that an upload is for; None for any other artifact.

    Bundles that tasks share are not deleted here, because it is not recorded which tasks need one: they expire with
    the limits of the stream.
    """
    project, owner, artifact = subject.split(".")[-3:]
    if owner.startswith(SANDBOX_PREFIX) or owner == SHARED_BUNDLES or not artifact.startswith(UPLOAD_PREFIX):
        return None
    return f"{project}.{owner}"
