"""Rows of the table of the monitor's rules. `monitor_rules` has the table, which is generated from the rules."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal


@dataclass(frozen=True)
class ThresholdRow:
    """A threshold of a rule: a number, its unit and bounds."""

    name: str
    unit: str
    default: float
    meaning: str
    whole: bool = False
    """Whether it is an integer."""
    minimum: float | None = None
    above: float | None = None
    """The exclusive minimum: the value has to be greater than this."""
    maximum: float | None = None
    setting: str | None = None
    """The setting that sets the threshold; the setting `rules` takes precedence."""

    @property
    def bounds(self) -> str:
        """The bounds as text; empty if there are none."""
        parts = (("at least", self.minimum), ("above", self.above), ("at most", self.maximum))
        return ", ".join(f"{name} {limit:g}" for name, limit in parts if limit is not None)

    def admits(self, value: float) -> bool:
        """Whether the threshold may have this value."""
        return (
            isfinite(value)
            and (not self.whole or value == int(value))
            and (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
        )


@dataclass(frozen=True)
class RuleRow:
    """A rule: a housekeeping rule ends a sandbox, a guardian rule steers an agent and may be turned off."""

    name: str
    kind: Literal["housekeeping", "guardian"]
    thresholds: tuple[ThresholdRow, ...] = ()
