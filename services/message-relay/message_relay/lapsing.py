"""Approvals that nobody answers: they expire with their time or with their sandbox, and that is said."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from message_relay.answering import Answering
from message_relay.approvals import Approvals, Held
from message_relay.asked import lapsed
from message_relay.deciding import ended
from message_relay.records import recorded_of
from sandherd.bus.connection import Bus

LOOKED_EVERY: Final = 2.0


class Lapsing:
    """Looks through the approvals. Every replica may: whoever writes the end first has ended it.

    One that was decided by a relay that did not live to say so is said here, too.
    """

    def __init__(self, bus: Bus, approvals: Approvals, answering: Answering) -> None:
        self._bus = bus
        self._approvals = approvals
        self._answering = answering
        self._settled: set[str] = set()

    async def run(self) -> None:
        """Look through them now and then. Runs until cancelled."""
        while True:
            await self.look_through()
            await asyncio.sleep(LOOKED_EVERY)

    async def look_through(self) -> None:
        """End what is over, of all that is not known to be settled."""
        subjects = await self._approvals.subjects()
        self._settled.intersection_update(subjects)
        for subject in subjects:
            held = None if subject in self._settled else await self._approvals.at(subject)
            if held is not None and await self._settle(held):
                self._settled.add(subject)

    async def _settle(self, held: Held) -> bool:
        """Whether it is decided and that was said."""
        asked = held.asked
        if asked.decision is None:
            gone = ended(asked.sandbox, await recorded_of(self._bus, asked.project, asked.sandbox))
            over = lapsed(asked, datetime.now(UTC), ended=gone is not None)
            written = None if over is None else await self._approvals.write(over, held)
            if written is None:  # it waits, or was answered at this very moment
                return False
            held = written
        await self._answering.conclude(held)
        return True
