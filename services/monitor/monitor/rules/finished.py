"""The agent has ended, and no one needs its sandbox any more."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts
from monitor.rules.rule import Documentation, Finding, HousekeepingRule, SettingReference, Thresholds, Unit


class FinishedThresholds(Thresholds):
    """The time that a sandbox stays after its agent has ended."""

    after: Annotated[float, Unit("s"), SettingReference("finished_after"), Field(gt=0)] = 300
    """Time without a message or work after the agent has ended."""


@dataclass(frozen=True)
class Finished(HousekeepingRule[None, FinishedThresholds]):
    """The agent has ended, and there was neither a message nor work for some time.

    The time is `after`, or the linger time if that is longer. A command that a user runs in the sandbox counts as work,
    even if it prints nothing.
    """

    name = "finished"
    order = 40
    thresholds = FinishedThresholds
    documentation = Documentation(
        condition="the agent has ended, and since then there was neither a message nor work for `after`, or for the "
        "linger time if that is longer",
        avoids="a user who still works in the sandbox: a running command is work, and each message begins the time "
        "again",
        source="the time that a user needs for a follow-up",
    )

    def evaluate(self, _part: None, facts: Facts, now: datetime, thresholds: FinishedThresholds) -> Finding | None:
        """The finding, if the sandbox is not needed any more.

        None for a paused sandbox, a sandbox without a task, and while a command of a user runs.
        """
        user_command_runs = any(call.by_user for call in facts.in_flight.values())
        if facts.paused or facts.alone or facts.finished_at is None or user_command_runs:
            return None
        since = facts.waiting_since(facts.finished_at, facts.last_message_at, facts.last_work_at)
        return self.exceeded(since, now, max(thresholds.after, facts.linger))


RULE: Final = Finished()
