"""The sandbox publishes so much that it uses up capacity that all sandboxes share."""

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from pydantic import Field

from monitor.facts import Facts, Observation
from monitor.rules.rule import Documentation, Finding, HousekeepingRule, SettingReference, Thresholds, Unit
from sandherd.contracts.events.monitor import IdleFinding, MonitorFloodFound

WINDOW_SECONDS: Final = 60
"""The length of a flood window, over which the messages of a sandbox are summed up."""
JUNK_PER_DEAD_LETTER: Final = 5
"""The default maximum of junk messages in a minute, for each dead letter in a minute that is stored of a sandbox."""
_MIB: Final = 1024 * 1024


class FloodThresholds(Thresholds):
    """The maximum that a sandbox may publish in a minute."""

    bytes: Annotated[int, Unit("By"), SettingReference("flood_mb", _MIB), Field(ge=1)] = 256 * _MIB
    """Maximum number of bytes in a minute."""
    messages: Annotated[int, Unit("messages"), SettingReference("flood_messages", WINDOW_SECONDS), Field(ge=1)] = 60_000
    """Maximum number of messages in a minute."""
    junk: Annotated[
        int, Unit("messages"), SettingReference("dead_letters_per_minute", JUNK_PER_DEAD_LETTER), Field(ge=1)
    ] = 300
    """Maximum number of messages in a minute that are not valid events."""


@dataclass(frozen=True, slots=True)
class FloodWindow:
    """The messages that the sandbox has published in the last flood window, which began at `since`."""

    since: datetime | None = None
    bytes: int = 0
    messages: int = 0
    junk: int = 0
    """Number of those messages that were not valid events."""


@dataclass(frozen=True)
class Flood(HousekeepingRule[FloodWindow, FloodThresholds]):
    """The sandbox exceeds a flood limit, and uses capacity of the stream that all share. A past flood is ignored."""

    name = "flooding"
    order = 10
    thresholds = FloodThresholds
    part = FloodWindow
    folds_output = True
    prompt = True
    from_silence = False
    requires_task = False
    documentation = Documentation(
        condition="the sandbox publishes more than `bytes`, `messages` or `junk` (messages that are not valid events) "
        f"within {WINDOW_SECONDS} s",
        avoids="a flood that ended while the monitor was not reading is ignored; so is much output over a long time",
        source="what the broker can store for all sandboxes of a herd",
    )

    def fold(self, part: FloodWindow, observation: Observation, _facts: Facts) -> FloodWindow:
        """Add a message to the sums of the window. After its end, a new window begins."""
        event = observation.event
        if part.since is None or (event.at - part.since).total_seconds() >= WINDOW_SECONDS:
            return FloodWindow(event.at, event.size, 1, int(event.junk))
        return FloodWindow(part.since, part.bytes + event.size, part.messages + 1, part.junk + event.junk)

    def evaluate(self, part: FloodWindow, _facts: Facts, now: datetime, thresholds: FloodThresholds) -> Finding | None:
        """The finding, if a limit was exceeded in the last window, and that is not long ago."""
        if part.since is None or not _is_flood(part, thresholds):
            return None
        is_past = (now - part.since).total_seconds() > 2 * WINDOW_SECONDS
        return None if is_past else Finding(self.name, part.since, WINDOW_SECONDS)

    def event(self, part: FloodWindow, finding: Finding, now: datetime) -> IdleFinding:
        """The event `monitor.flood_found`, with the amounts that were published."""
        return MonitorFloodFound(
            rule=self.name,
            age_seconds=finding.age(now),
            limit_seconds=finding.limit,
            said_bytes=part.bytes,
            said_messages=part.messages,
            said_junk=part.junk,
        )


def _is_flood(part: FloodWindow, limits: FloodThresholds) -> bool:
    return part.bytes > limits.bytes or part.messages > limits.messages or part.junk > limits.junk


RULE: Final = Flood()
