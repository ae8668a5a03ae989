"""The sandbox has existed for longer than permitted."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts
from monitor.rules.rule import (
    REPEAT_AFTER,
    Documentation,
    Finding,
    HousekeepingRule,
    SettingReference,
    Thresholds,
    Unit,
)
from sandherd.contracts.records import SharedSandboxRecord


class TooOldThresholds(Thresholds):
    """The permitted age of a sandbox."""

    age: Annotated[float, Unit("s"), SettingReference("max_age"), Field(gt=0)] = 43_200
    """Maximum age of a sandbox without a time to live of its own."""


@dataclass(frozen=True)
class TooOld(HousekeepingRule[None, TooOldThresholds]):
    """The sandbox is older than permitted.

    The spawner ends a sandbox with an `expires_at`. This rule finds it only if it still runs `REPEAT_AFTER` later: two
    services that end one sandbox would publish two different reasons.
    """

    name = "too_old"
    order = 30
    thresholds = TooOldThresholds
    from_silence = False
    documentation = Documentation(
        condition="the sandbox is older than `age`. If it has a time to live, this counts instead: the sandbox has "
        f"exceeded it by {REPEAT_AFTER:.0f} s, because the spawner has not ended the sandbox",
        avoids="an extended sandbox may exceed `age`, because only its time to live counts",
        source="the longest lifetime that a task is expected to need",
    )

    def evaluate(self, _part: None, facts: Facts, now: datetime, thresholds: TooOldThresholds) -> Finding | None:
        """The finding, if the sandbox has exceeded `age`, or its time to live by `REPEAT_AFTER`."""
        if facts.expires_at is None:
            return self.exceeded(facts.started_at, now, thresholds.age)
        if (now - facts.expires_at).total_seconds() < REPEAT_AFTER:
            return None
        lifetime = max(0.0, (facts.expires_at - facts.started_at).total_seconds())
        return Finding(self.name, facts.started_at, lifetime)

    def confirms(self, recorded: SharedSandboxRecord, now: datetime) -> bool:
        """Whether the sandbox has not been extended. A paused sandbox is ended, too."""
        return recorded.expires_at is None or now >= recorded.expires_at


RULE: Final = TooOld()
