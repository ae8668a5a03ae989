"""What a consumer does with a message that was pulled: handle it in its turn, or hand it back to come again later.

A durable consumer is one first-in-first-out line for all projects. What is pulled is put into a queue that is fair
between them; but a message that is not pulled yet can't overtake the flood that stands before it in the stream. So what
a sandbox (or a project) publishes beyond a rate is handed back to the broker with a delay, unread, and comes again at
that rate: the line moves on as fast as messages can be handed back. `max_ack_pending` of the consumer is the number of
messages that can be away so at a time. The delay also keeps the order of what one sandbox said, apart from messages
that a broker restart or another replica comes between.
"""

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandherd.bus.fair_queue import Lane
from sandherd.bus.rate_limit import Rate, RateLimiter, cost_of, rate_of

_SHORTEST_DELAY: Final = 1.0
_LONGEST_DELAY: Final = 60.0


@dataclass(frozen=True, slots=True)
class IntakeRates:
    """What may be published per entity (a sandbox) and per project before it is handed back to come later."""

    entity: Rate
    project: Rate


INTAKE_BURST: Final = 10.0
"""Seconds of the rate that are taken at once; a burst that is longer than this is spread."""
DEFAULT_RATES: Final = IntakeRates(entity=rate_of(1000, INTAKE_BURST), project=rate_of(10_000, INTAKE_BURST))


class Intake:
    """Decides for each message whether it is queued now (0.0) or handed back, and for how many seconds."""

    def __init__(self, rates: IntakeRates) -> None:
        self._entities = RateLimiter(rates.entity)
        self._projects = RateLimiter(rates.project)
        self._busy_until: dict[Lane, float] = {}
        """Until when messages of a lane are away: later ones of it must not overtake them."""

    def delay(self, lane: Lane, stored_at: datetime, size: int, now: float) -> float:
        """How many seconds to hand back a message that is delivered for the first time. `now` is a Unix second."""
        at, cost = stored_at.timestamp(), cost_of(size)
        excess = max(self._entities.excess(lane, at, cost), self._projects.excess(lane.project, at, cost))
        until = self._busy_until.get(lane, 0.0)
        if not excess and until <= now:
            return 0.0
        return self._put_off(lane, now, max(excess, until - now))

    def _put_off(self, lane: Lane, now: float, seconds: float) -> float:
        """Whole seconds of our clock: the broker looks through all that is away each time that something is due."""
        due = math.ceil(now + min(_LONGEST_DELAY, max(_SHORTEST_DELAY, seconds)))
        if len(self._busy_until) > 1000:
            self._busy_until = {lane: until for lane, until in self._busy_until.items() if until > now}
        self._busy_until[lane] = max(self._busy_until.get(lane, 0.0), due)
        return due - now
