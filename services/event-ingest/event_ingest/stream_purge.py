"""Purges streams that refuse messages when full, before they are full. The spawner does the purge, on request.

No event is lost while EVENTS is full: workers store their events in their spools, and services retry. But all
publishers have to wait, whichever of them filled it. So events that Postgres has stored are purged, the oldest first;
others are not. ARTIFACTS has no consumer that stores it: there, the oldest chunks of the sandboxes with the most chunks
are purged.
"""

from collections import Counter
from functools import cached_property
from typing import Final

from event_ingest.stream_purge_policy import estimate_bytes, is_nearly_full, limit_chunks, next_purge_sequence
from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.errors import BusError
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.concurrency import sleep_aligned
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import PurgeArtifacts, PurgeEvents
from sandherd.contracts.subjects import ARTIFACT
from sandherd.service.service import Service
from sandherd.service.stream_usage import StreamFill, acknowledged_sequence, read_fill
from sandherd.telemetry import logs

LEASE: Final = "event-ingest.room"
EVENTS: Final = "EVENTS"
ARTIFACTS: Final = "ARTIFACTS"
_CHECK_SECONDS: Final = 1.0
_UNAVAILABLE_ERRORS: Final = (*BROKER_ERRORS, BusError)
_log: Final = logs.get("retention")


class StreamRetention:
    """The part of event-ingest that purges streams, in one replica at a time."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self) -> None:
        """Purge whenever the lease is held and a stream is nearly full. Runs until cancelled."""
        self._service.health.add(LEASE, self._lease.problem)
        self._service.meters.watch("sandherd_lease_held", lambda: self._lease.held, lease=LEASE)
        await self._lease.run_with(self._purge_while_held())

    async def _purge_while_held(self) -> None:
        while True:
            await self._lease.wait_held()
            try:
                await self.purge_events()
                await self.purge_artifacts()
            except LeaseLostError:
                _log.info("lease lost, purging stopped")
            except _UNAVAILABLE_ERRORS as error:
                _log.warning("purge failed, retrying", error=repr(error))
            await sleep_aligned(_CHECK_SECONDS)

    async def purge_events(self) -> None:
        """Purge the oldest events that every durable consumer is done with, if the stream is nearly full."""
        before = fill = await read_fill(self._service.bus, EVENTS)
        if not is_nearly_full(fill):
            return
        freed = 0
        while (below := next_purge_sequence(fill, await acknowledged_sequence(self._service.bus, fill))) is not None:
            self._lease.check()
            result = await self._service.bus.ask(PurgeEvents(below=below), FLEET)
            freed += estimate_bytes(fill, result.messages)
            fill = await read_fill(self._service.bus, EVENTS)
        self._report(before, fill, freed)

    async def purge_artifacts(self) -> None:
        """Purge the oldest chunks of the sandboxes with the most chunks, if the stream is nearly full."""
        before = await read_fill(self._service.bus, ARTIFACTS)
        if not is_nearly_full(before):
            return
        freed = 0
        for (project, sandbox), keep in limit_chunks(await self._count_chunks(), before).items():
            self._lease.check()
            _log.warning("purging oldest artifacts of sandbox", project=project, sandbox=sandbox, kept=keep)
            result = await self._service.bus.ask(PurgeArtifacts(sandbox=sandbox, keep=keep), project)
            freed += estimate_bytes(before, result.messages)
        self._report(before, await read_fill(self._service.bus, ARTIFACTS), freed)

    async def _count_chunks(self) -> Counter[tuple[str, str]]:
        """The number of chunks by sandbox, of the first 100,000 artifacts only, as the broker lists no more at once."""
        info = await self._service.bus.js.stream_info(ARTIFACTS, subjects_filter=ARTIFACT.pattern())
        chunks: Counter[tuple[str, str]] = Counter()
        for subject, count in (info.state.subjects or {}).items():
            tokens = ARTIFACT.match(subject)
            if tokens is not None:
                chunks[tokens["project"], tokens["sandbox"]] += count
        return chunks

    def _report(self, before: StreamFill, after: StreamFill, freed: int) -> None:
        if not freed:
            return  # the remaining messages are not stored yet, or must not be purged
        self._service.meters.count("sandherd_room_given_bytes_total", freed, stream=before.stream)
        _log.warning("stream purged", stream=before.stream, bytes=freed, before=before.ratio, after=after.ratio)

    @cached_property
    def _lease(self) -> Lease:
        return Lease(self._service.bus, LEASE, self._service.instance)
