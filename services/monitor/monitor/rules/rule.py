"""The interface of rules: what a rule reads, its part of a sandbox's state, its thresholds, decision and documentation.

A rule is pure. It gets its own part and the facts that all rules share, and can change only its part.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, ConfigDict

from monitor.facts import Facts, Observation
from sandherd.contracts.events import EventData
from sandherd.contracts.events.monitor import IdleFinding, MonitorIdleFound, SteeringStep
from sandherd.contracts.records import SharedSandboxRecord
from sandherd.contracts.states import SandboxState

Kind = Literal["housekeeping", "guardian"]
PartT = TypeVar("PartT")
ThresholdsT = TypeVar("ThresholdsT", bound="Thresholds")
REPEAT_AFTER: Final = 60.0
"""Seconds that the spawner has to end a sandbox before the finding is reported to it again."""
MAX_EVIDENCE: Final = 16
"""Maximum number of events that a rule remembers as evidence."""


class Thresholds(BaseModel):
    """The thresholds of a rule: numbers with a default and bounds.

    Each has a `Unit`, a docstring with its meaning, and a `SettingReference` if a separate setting sets it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


@dataclass(frozen=True, slots=True)
class Unit:
    """The unit of a threshold: `s`, `By` (bytes), or the things that are counted."""

    name: str


@dataclass(frozen=True, slots=True)
class SettingReference:
    """The setting of a threshold, and the factor from the setting's unit to the threshold's unit."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class Documentation:
    """A row of docs/monitor.md."""

    condition: str
    avoids: str
    """The false positive that it avoids, and how."""
    source: str
    """Where the condition and its defaults come from."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The finding of a housekeeping rule: its condition has held from `since`; `limit` is its threshold in seconds."""

    rule: str
    since: datetime
    limit: float

    def age(self, now: datetime) -> float:
        """How long the condition has held, in seconds."""
        return max(0.0, (now - self.since).total_seconds())


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern that a guardian rule sees in an agent's behaviour.

    Two patterns with the same key are the same pattern, whenever they were seen.
    """

    rule: str
    key: str
    since: datetime
    began: int
    """The stream sequence of its first event."""
    count: int
    """The number of repetitions, which the thresholds are compared with."""
    summary: str
    """A description in one sentence."""
    evidence: tuple[UUID, ...] = ()
    """Ids of its last events, newest last."""
    watched: str = ""
    """The rule that found the pattern first and recognises its repetitions, if that is a different rule."""


class Rule(ABC, Generic[PartT, ThresholdsT]):
    """A rule. Its class has everything that is the same for all sandboxes."""

    name: ClassVar[str]
    """Its name in events, labels and settings, and the name of its module."""
    kind: ClassVar[Kind]
    order: ClassVar[int]
    """Rules are evaluated in ascending order. At most one rule of each kind acts at a time: the first one with a
    finding that may be acted upon."""
    documentation: ClassVar[Documentation]
    thresholds: ClassVar[type[Thresholds]]
    part: ClassVar[type | None] = None
    """The type of its part: a frozen dataclass of small, limited size, whose default values are the part of a new
    sandbox. None if the facts are enough."""
    reads: ClassVar[tuple[type[EventData], ...]] = ()
    """The types of events whose content it needs. It folds each such event that is valid."""
    folds_calls: ClassVar[bool] = False
    """Whether it folds the end of each tool call."""
    folds_output: ClassVar[bool] = False
    """Whether it folds each message that the sandbox publishes, whatever its type, also invalid ones."""
    prompt: ClassVar[bool] = False
    """Whether it is evaluated as soon as its part has changed; others wait for the next check."""

    def fold(self, part: PartT, observation: Observation, facts: Facts) -> PartT:  # noqa: ARG002  # none to fold
        """Its part after an observation. `facts` already include the observation."""
        return part

    @abstractmethod
    def evaluate(self, part: PartT, facts: Facts, now: datetime, thresholds: ThresholdsT) -> Finding | Pattern | None:
        """Its finding or pattern at `now`, if there is one."""


class HousekeepingRule(Rule[PartT, ThresholdsT]):
    """A rule that ends a sandbox. Its name is also the reason in the command to the spawner."""

    kind = "housekeeping"
    from_silence: ClassVar[bool] = True
    """Whether it concludes from missing events. After a start of the monitor, such a rule waits until those events
    would have arrived."""
    requires_task: ClassVar[bool] = True
    """Whether it ends only sandboxes with a task. A sandbox without one is left to its user."""

    @abstractmethod
    def evaluate(self, part: PartT, facts: Facts, now: datetime, thresholds: ThresholdsT) -> Finding | None:
        """Its finding, if its condition holds at `now`."""

    def confirms(self, recorded: SharedSandboxRecord, now: datetime) -> bool:  # noqa: ARG002  # some compare the time
        """Whether its finding still holds by the spawner's record. It is not called for a sandbox that is ending.

        The record shows a pause or an extension earlier than the events do.
        """
        return recorded.state is not SandboxState.PAUSED and (recorded.task is not None or not self.requires_task)

    def event(self, part: PartT, finding: Finding, now: datetime) -> IdleFinding:  # noqa: ARG002  # some have a part
        """The event that publishes a finding."""
        return MonitorIdleFound(rule=self.name, age_seconds=finding.age(now), limit_seconds=finding.limit)

    def exceeded(self, since: datetime, now: datetime, limit: float) -> Finding | None:
        """A finding if at least `limit` seconds have passed since `since`."""
        return Finding(self.name, since, limit) if (now - since).total_seconds() >= limit else None


class GuardianRule(Rule[PartT, ThresholdsT]):
    """A rule that steers an agent."""

    kind = "guardian"
    prompt = True
    steps: ClassVar[Mapping[SteeringStep, str]]
    """The steps that it can take, weakest first, each with the name of a threshold. A step is reached when the
    pattern's count is at least this threshold."""
    soft: ClassVar[bool] = False
    """Whether its pattern is only a suspicion, which a model may drop."""
    requires_assessor: ClassVar[bool] = False
    """Whether its pattern means nothing without a model's verdict. If no model is configured, the rule is not
    evaluated."""
    across_episodes: ClassVar[bool] = False
    """Whether its part is preserved when a message of a user begins a new episode. Otherwise the episode begins with a
    new part."""

    @abstractmethod
    def pattern(self, part: PartT) -> Pattern | None:
        """The pattern in its part, even while it is below the thresholds; None if there is none."""

    @abstractmethod
    def evaluate(self, part: PartT, facts: Facts, now: datetime, thresholds: ThresholdsT) -> Pattern | None:
        """The pattern for which the agent is to be steered at `now`, if there is one."""

    def step(self, pattern: Pattern, thresholds: ThresholdsT) -> SteeringStep | None:
        """The highest step that the pattern's count reaches; None below the first.

        Steps are ordered by strength, and none is skipped: a step is not reached before all weaker ones.
        """
        reached: SteeringStep | None = None
        for step, threshold in self.steps.items():
            if pattern.count < getattr(thresholds, threshold):
                break
            reached = step
        return reached

    @abstractmethod
    def steering_text(self, part: PartT) -> str:
        """The message to the agent: what the agent does, and what to do instead."""

    @abstractmethod
    def is_repeated(self, key: str, part: PartT, observation: Observation) -> bool | None:
        """Whether an observation after the delivery of a message shows the pattern with this key again.

        False if it shows other behaviour; None if it shows neither. `part` already includes the observation. The
        message counts as ignored after `ignored_after` repetitions, and as obeyed if none has occurred for some time.
        """

    @abstractmethod
    def ignored_after(self, thresholds: ThresholdsT) -> int:
        """How often the pattern has to occur after the delivery until the message counts as ignored."""


AnyRule = Rule[Any, Any]
AnyHousekeepingRule = HousekeepingRule[Any, Any]
AnyGuardianRule = GuardianRule[Any, Any]
