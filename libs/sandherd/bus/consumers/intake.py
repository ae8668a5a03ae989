"""Decides whether a pulled message is queued now, or returned to the broker for a later redelivery.

A durable consumer is one FIFO queue for all projects. Pulled messages are put into a queue that is fair between
projects, but a message that is not pulled yet can't overtake a flood ahead of it in the stream. So messages that a
sandbox or a project publishes above a rate are returned to the broker unread, with a delay, and are redelivered at that
rate. The stream then advances as fast as messages can be returned. The consumer's `max_ack_pending` limits the number
of messages that are delayed at a time. The delays preserve the order of one sandbox's messages, unless the broker
restarts or another replica gets some of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from sandherd.bus.consumers.dead_letters import DEFAULT_DEAD_LETTER_LIMIT, OnSuppressed
from sandherd.bus.consumers.fair_queue import Lane
from sandherd.bus.rate_limit import Rate, RateLimiter, cost_of, rate_of
from sandherd.settings import Settings
from sandherd.telemetry.meters import Meters

_MIN_DELAY: Final = 1.0
_MAX_DELAY: Final = 60.0
"""The shortest and the longest delay of a message, in seconds."""


@dataclass(frozen=True, slots=True)
class IntakeRates:
    """Rates per entity (a sandbox or task) and per project. Messages above a rate are redelivered later."""

    entity: Rate
    project: Rate


INTAKE_BURST: Final = 10.0
"""Messages of this number of seconds at the full rate are accepted at once. Further messages are delayed."""
DEFAULT_RATES: Final = IntakeRates(entity=rate_of(1000, INTAKE_BURST), project=rate_of(10_000, INTAKE_BURST))


class Intake:
    """Computes the delay of each message. A message with the delay 0 is queued at once."""

    def __init__(self, rates: IntakeRates) -> None:
        self._entities = RateLimiter(rates.entity)
        self._projects = RateLimiter(rates.project)
        self._busy_until: dict[Lane, float] = {}
        """For each lane, the Unix second until which its messages are delayed, so that none overtakes a delayed one."""

    def delay(self, lane: Lane, stored_at: datetime, size: int, now: float) -> float:
        """The delay in seconds of a message that is delivered for the first time. `now` is a Unix second."""
        at, cost = stored_at.timestamp(), cost_of(size)
        excess = max(self._entities.excess(lane, at, cost), self._projects.excess(lane.project, at, cost))
        until = self._busy_until.get(lane, 0.0)
        if not excess and until <= now:
            return 0.0
        return self._rounded_delay(lane, now, max(excess, until - now))

    def _rounded_delay(self, lane: Lane, now: float, seconds: float) -> float:
        """The delay, rounded up to a whole second of the clock.

        Then messages are due together. Each time some are due, the broker scans all delayed messages.
        """
        due = math.ceil(now + min(_MAX_DELAY, max(_MIN_DELAY, seconds)))
        if len(self._busy_until) > 1000:
            self._busy_until = {lane: until for lane, until in self._busy_until.items() if until > now}
        self._busy_until[lane] = max(self._busy_until.get(lane, 0.0), due)
        return due - now


Deferred = Callable[[str], None]
"""A function that is called, with the consumer's name, for each message that is returned for a later redelivery."""


@dataclass(frozen=True, slots=True)
class SourceLimits:
    """Limits for the sources of a consumer's messages, and functions that count what exceeds them.

    `dead_letters` is the maximum number of dead letters per source and minute.
    """

    rates: IntakeRates = DEFAULT_RATES
    dead_letters: int = DEFAULT_DEAD_LETTER_LIMIT
    suppressed: OnSuppressed | None = None
    deferred: Deferred | None = None


def source_limits(settings: Settings, meters: Meters) -> SourceLimits:
    """The limits that the settings configure. Messages above them are counted in metrics."""
    entity, project = settings.flood_messages, settings.flood_project_messages
    return SourceLimits(
        rates=IntakeRates(entity=rate_of(entity, INTAKE_BURST), project=rate_of(project, INTAKE_BURST)),
        dead_letters=settings.dead_letters_per_minute,
        suppressed=lambda consumer, code: meters.count(
            "sandherd_dead_letters_dropped_total", consumer=consumer, code=code
        ),
        deferred=lambda consumer: meters.count("sandherd_deliveries_deferred_total", consumer=consumer),
    )
