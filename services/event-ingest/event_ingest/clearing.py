"""Giving room in the streams that refuse when they are full, before they do.

A full EVENTS loses nothing: workers keep what they have to say in their spools, and services say it again and again.
But all wait, whoever filled it. So what is stored already goes in time, the oldest first; what is not stored stays.
ARTIFACTS has no consumer that stores it: there, the sandboxes that hold most give up their oldest pieces.
"""

import asyncio
from collections import Counter
from functools import cached_property
from typing import Final

import nats.errors
import nats.js.errors

from event_ingest.room import is_near, next_cut, to_keep
from sandherd.bus.fullness import Fill, read_fill
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.service import Service
from sandherd.bus.together import together
from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry import logs

LEASE: Final = "event-ingest.room"
EVENTS: Final = "EVENTS"
ARTIFACTS: Final = "ARTIFACTS"
_LOOKED_EVERY: Final = 1.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, TimeoutError, OSError)
_log: Final = logs.get("clearing")


class Clearing:
    """The part of event-ingest that gives room; one replica at a time does."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def run(self) -> None:
        """Give room whenever the lease is held and a stream is nearly full. Runs until cancelled."""
        self._service.health.add(LEASE, self._lease.problem)
        self._service.meters.watch("sandherd_lease_held", lambda: self._lease.held, lease=LEASE)
        await together(self._lease.keep(), self._clear_while_held())

    async def _clear_while_held(self) -> None:
        while True:
            await self._lease.wait_held()
            try:
                await self.clear_events()
                await self.clear_artifacts()
            except LeaseLostError:
                _log.info("another gives room now")
            except _UNANSWERED as error:
                _log.warning("no room could be given", error=repr(error))
            await asyncio.sleep(_LOOKED_EVERY)

    async def clear_events(self) -> None:
        """Take the oldest events out that every consumer is done with, if there are too many."""
        before = fill = await read_fill(self._service.bus, EVENTS)
        if not is_near(fill):
            return
        while (cut := next_cut(fill, await self._handled(fill))) is not None:
            self._lease.check()
            await self._service.bus.js.purge_stream(EVENTS, seq=cut)
            fill = await read_fill(self._service.bus, EVENTS)
        self._count(before, fill)

    async def _handled(self, fill: Fill) -> int:
        """Up to where every durable consumer has done its work; `fill` was read before."""
        return min([await self._done_by(row.name, fill) for row in CONSUMERS if row.stream == EVENTS])

    async def _done_by(self, consumer: str, fill: Fill) -> int:
        info = await self._service.bus.js.consumer_info(EVENTS, consumer)
        if not info.num_pending and not info.num_ack_pending:
            # One that takes few of the events may have done nothing for long, and still be done with all of them.
            return fill.last
        return info.ack_floor.stream_seq if info.ack_floor else 0

    async def clear_artifacts(self) -> None:
        """Take the oldest pieces of those that hold most out, if there are too many."""
        before = await read_fill(self._service.bus, ARTIFACTS)
        if not is_near(before):
            return
        for (project, sandbox), keep in to_keep(await self._pieces(), before).items():
            self._lease.check()
            _log.warning("a sandbox gives up its oldest artifacts", project=project, sandbox=sandbox, kept=keep)
            subject = ARTIFACT.pattern({"project": project, "sandbox": sandbox})
            await self._service.bus.js.purge_stream(ARTIFACTS, subject=subject, keep=keep)
        self._count(before, await read_fill(self._service.bus, ARTIFACTS))

    async def _pieces(self) -> Counter[tuple[str, str]]:
        """How many pieces each sandbox holds; of the first 100,000 artifacts, more the broker does not name at once."""
        info = await self._service.bus.js.stream_info(ARTIFACTS, subjects_filter=ARTIFACT.pattern())
        found: Counter[tuple[str, str]] = Counter()
        for subject, count in (info.state.subjects or {}).items():
            names = ARTIFACT.match(subject)
            if names is not None:
                found[names["project"], names["sandbox"]] += count
        return found

    def _count(self, before: Fill, after: Fill) -> None:
        given = max(0, before.held - after.held)
        if not given:
            return  # all that is left is still to be stored, or is nobody's to give up
        self._service.meters.count("sandherd_room_given_bytes_total", given, stream=before.stream)
        _log.warning("gave room", stream=before.stream, bytes=given, before=before.ratio, after=after.ratio)

    @cached_property
    def _lease(self) -> Lease:
        return Lease(self._service.bus, LEASE, self._service.instance)
