"""The agent does nothing."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts
from monitor.rules.rule import Documentation, Finding, HousekeepingRule, SettingReference, Thresholds, Unit


class IdleThresholds(Thresholds):
    """The time for which an agent may do nothing."""

    after: Annotated[float, Unit("s"), SettingReference("idle_after"), Field(gt=0)] = 600
    """Time without work and without a call in flight."""


@dataclass(frozen=True)
class Idle(HousekeepingRule[None, IdleThresholds]):
    """The agent has done no work for too long, and no call is in flight. A running call is activity."""

    name = "idle"
    order = 60
    thresholds = IdleThresholds
    documentation = Documentation(
        condition="there is no work for `after`, and no call is in flight",
        avoids="a long model call or tool call is activity until the rule `stuck` finds it. Heartbeats are not work",
        source="agents usually take less time between two events",
    )

    def evaluate(self, _part: None, facts: Facts, now: datetime, thresholds: IdleThresholds) -> Finding | None:
        """The finding, if there was no work for `after` and no call is in flight.

        None for a paused sandbox, a sandbox without a task, and an agent that has ended.
        """
        if facts.paused or facts.alone or facts.finished_at is not None or facts.in_flight:
            return None
        return self.exceeded(facts.waiting_since(facts.last_work_at), now, thresholds.after)


RULE: Final = Idle()
