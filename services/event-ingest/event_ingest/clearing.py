"""Giving room in the streams that refuse when they are full, before they do. The spawner purges, when it is asked here.

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
from sandherd.bus.errors import BusError
from sandherd.bus.fullness import Fill, handled, read_fill
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.bus.service import Service
from sandherd.bus.together import together
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import PurgeArtifacts, PurgeEvents
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry import logs

LEASE: Final = "event-ingest.room"
EVENTS: Final = "EVENTS"
ARTIFACTS: Final = "ARTIFACTS"
_LOOKED_EVERY: Final = 1.0
_UNANSWERED: Final = (nats.errors.Error, nats.js.errors.Error, BusError, TimeoutError, OSError)
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
        while (cut := next_cut(fill, await handled(self._service.bus, fill))) is not None:
            self._lease.check()
            await self._service.bus.ask(PurgeEvents(below=cut), FLEET)
            fill = await read_fill(self._service.bus, EVENTS)
        self._count(before, fill)

    async def clear_artifacts(self) -> None:
        """Take the oldest pieces of those that hold most out, if there are too many."""
        before = await read_fill(self._service.bus, ARTIFACTS)
        if not is_near(before):
            return
        for (project, sandbox), keep in to_keep(await self._pieces(), before).items():
            self._lease.check()
            _log.warning("a sandbox gives up its oldest artifacts", project=project, sandbox=sandbox, kept=keep)
            await self._service.bus.ask(PurgeArtifacts(sandbox=sandbox, keep=keep), project)
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
