"""Approvals that nobody answers: they expire with their time, or with their sandbox and its task, and that is said."""

import asyncio
from datetime import UTC, datetime
from typing import Final

from message_relay.answering import Answering
from message_relay.approvals import Approvals, Held
from message_relay.asked import Asked
from message_relay.judging import is_forgotten, lapsed
from message_relay.outliving import Outliving

LOOKED_EVERY: Final = 2.0


class Lapsing:
    """Looks through the approvals. Every replica may: whoever writes the end first has ended it.

    One that was decided by a relay that did not live to say so is said here, too.
    """

    def __init__(self, approvals: Approvals, outliving: Outliving, answering: Answering) -> None:
        self._approvals = approvals
        self._outliving = outliving
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
        """Whether it is decided, that was said, and its answer waits for nobody."""
        over = await self._over(held.asked)
        if over is not None:
            written = await self._approvals.write(over, held)
            if written is None:  # it was answered at this very moment
                return False
            held = written
        await self._answering.conclude(held)
        return not held.asked.waits

    async def _over(self, asked: Asked) -> Asked | None:
        """It, as it is over now; None if that changes nothing."""
        now = datetime.now(UTC)
        if asked.decision is not None:
            return asked.model_copy(update={"hand": "over"}) if is_forgotten(asked, now) else None
        gone = await self._outliving.ended(asked, asked.project, asked.sandbox)
        return lapsed(asked, now, ended=gone is not None)
