"""A tool call or model call takes too long."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Call, Facts
from monitor.rules.rule import Documentation, Finding, HousekeepingRule, SettingReference, Thresholds, Unit


class StuckThresholds(Thresholds):
    """The time that a call may take."""

    after: Annotated[float, Unit("s"), SettingReference("stuck_after"), Field(gt=0)] = 900
    """Maximum time that the oldest call is in flight."""


@dataclass(frozen=True)
class Stuck(HousekeepingRule[None, StuckThresholds]):
    """A call has been in flight for too long.

    An agent's whole program may take as long as its sandbox may live. A command that a user runs has a limit of its
    own. An approval has one, too, and while an approval is open, all other calls wait for it.
    """

    name = "stuck"
    order = 50
    thresholds = StuckThresholds
    documentation = Documentation(
        condition="a tool call or model call is in flight for `after`",
        avoids="these calls do not count: a command of a user, the agent's whole program, and the call of a sub-agent "
        "as long as there is work. While a call waits for an approval, the rule finds nothing",
        source="builds and test runs of agents usually take less time. There is no guardian rule for long calls, "
        "because a message does not reach an agent that waits for a call",
    )

    def evaluate(self, _part: None, facts: Facts, now: datetime, thresholds: StuckThresholds) -> Finding | None:
        """The finding, if a call is in flight for `after`; None if the sandbox is paused or an approval is open."""
        calls = [_since(call, facts) for call in facts.in_flight.values() if not call.whole and not call.by_user]
        waits = any(call.waits for call in facts.in_flight.values())
        if facts.paused or facts.finished_at is not None or not calls or waits:
            return None
        return self.exceeded(facts.waiting_since(min(calls), facts.answered_at), now, thresholds.after)


def _since(call: Call, facts: Facts) -> datetime:
    """The time from which the time in flight of a call counts.

    Work of a sub-agent shows that the call that started it is not stuck.
    """
    worked_at = facts.last_work_at if call.delegated else None
    return call.begun_at if worked_at is None else max(call.begun_at, worked_at)


RULE: Final = Stuck()
