"""The sandbox publishes nothing any more."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts
from monitor.rules.rule import Documentation, Finding, HousekeepingRule, SettingReference, Thresholds, Unit
from sandherd.contracts.events.monitor import IdleFinding, MonitorDeadFound


class DeadThresholds(Thresholds):
    """The time after which a silent sandbox is dead."""

    after: Annotated[float, Unit("s"), SettingReference("dead_after"), Field(gt=0)] = 90
    """Time without any event. After a start of the monitor, rules that conclude from missing events wait for this
    time."""


@dataclass(frozen=True)
class Dead(HousekeepingRule[None, DeadThresholds]):
    """The sandbox publishes neither events nor heartbeats.

    If it has never published, time counts from the request to create it.
    """

    name = "dead"
    order = 20
    thresholds = DeadThresholds
    requires_task = False
    documentation = Documentation(
        condition="the sandbox publishes neither an event nor a heartbeat for `after`",
        avoids="a paused sandbox can't publish: the time begins with the resume. An outage of the broker or of the "
        "monitor looks like silence: the rule waits for `after` once the monitor reads again",
        source="the interval of heartbeats: three of them may be lost",
    )

    def evaluate(self, _part: None, facts: Facts, now: datetime, thresholds: DeadThresholds) -> Finding | None:
        """The finding, if nothing was published for `after`; None for a paused sandbox."""
        return None if facts.paused else self.exceeded(facts.last_sign_at, now, thresholds.after)

    def event(self, _part: None, finding: Finding, now: datetime) -> IdleFinding:
        """The event `monitor.dead_found`."""
        return MonitorDeadFound(rule=self.name, age_seconds=finding.age(now), limit_seconds=finding.limit)


RULE: Final = Dead()
