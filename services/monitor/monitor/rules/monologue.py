"""The agent writes messages, and calls no tool."""

from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import Facts, Observation, ObservedEvent
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit
from monitor.seen_values import MAX_EVIDENCE_IDS
from sandherd.contracts.events.agent import AgentTurnStarted, AgentWaiting
from sandherd.contracts.events.conversation import AgentAssistantMessage, AgentMessage, AgentMessageInjected
from sandherd.contracts.events.tools import (
    AgentApprovalRequested,
    AgentSkillInvoked,
    AgentSubagentInvoked,
    AgentToolUse,
)

_MIN_SECONDS_APART: Final = 2.0
"""Texts that are at least this many seconds apart are two messages; the texts of one response follow each other
faster."""
_ACTION_EVENTS: Final = (AgentToolUse, AgentSubagentInvoked, AgentSkillInvoked, AgentWaiting, AgentApprovalRequested)
_INPUT_ORIGINS: Final = frozenset({"task", "resume", "user", "agent"})
"""The origins of turns in which the agent is expected to write. With such a turn, the count begins again."""


class MonologueThresholds(Thresholds):
    """The numbers of messages that are a monologue."""

    messages: Annotated[int, Unit("messages"), Field(ge=2)] = 3
    """Number of messages without a call in between. A message after which the pattern occurs this often counts as
    `ignored`."""
    terminate_at: Annotated[int, Unit("messages"), Field(ge=2)] = 9
    """At this number the sandbox is ended."""


@dataclass(frozen=True, slots=True)
class Speech:
    """The messages of the agent since it last acted or waited, or since a user or another agent began a turn."""

    count: int = 0
    since: datetime | None = None
    began: int = 0
    last: int = 0
    """The stream sequence of the last message that was counted."""
    last_at: datetime | None = None
    """When the last text was published, if further texts of the same response may follow."""
    of_notice: bool = False
    """Whether a notice of the agent's own program began the turn. Messages in such a turn don't count."""
    evidence: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class Monologue(GuardianRule[Speech, MonologueThresholds]):
    """The agent writes several messages without a call in between, while it does not wait for anything."""

    name = "monologue"
    order = 230
    thresholds = MonologueThresholds
    part = Speech
    reads = (AgentMessage, AgentAssistantMessage, AgentMessageInjected, AgentTurnStarted, *_ACTION_EVENTS)
    folds_calls = True
    steps = MappingProxyType({"nudge": "messages", "terminate": "terminate_at"})
    documentation = Documentation(
        condition="the agent writes `messages` messages without a call in between, and neither waits nor has ended",
        avoids="a question to a user: the count begins again after `agent.waiting`, after a request for an approval, "
        "and with a turn that a user or another agent begins. Not counted are messages in a turn that begins with a "
        "notice of the agent's own program, such as the end of a background task; and texts of sub-agents. Several "
        "texts of one response count once",
        source="OpenHands' stuck detector, which also needs three",
    )

    def fold(self, part: Speech, observation: Observation, _facts: Facts) -> Speech:
        """Count a message. An action of the agent or a new turn begins the count again."""
        data = observation.event.data
        if isinstance(data, AgentMessage):
            return _with_message(part, observation.event, data)
        if observation.call is not None or isinstance(data, _ACTION_EVENTS):
            return part if part.count == 0 and part.last_at is None else Speech(of_notice=part.of_notice)
        if isinstance(data, AgentTurnStarted):
            notice = data.origin == "notice"
            return Speech() if data.origin in _INPUT_ORIGINS else replace(part, of_notice=notice, last_at=None)
        return part if part.last_at is None else replace(part, last_at=None)

    def pattern(self, part: Speech) -> Pattern | None:
        """The messages, even below the threshold."""
        if part.since is None:
            return None
        summary = f"{part.count} messages without a call between"
        return Pattern(self.name, "messages", part.since, part.began, part.count, summary, part.evidence)

    def evaluate(self, part: Speech, facts: Facts, _now: datetime, thresholds: MonologueThresholds) -> Pattern | None:
        """The messages, if there are enough of them, the agent has not ended, and no approval is open."""
        if part.count < thresholds.messages or facts.finished_at is not None:
            return None
        return None if any(call.waits for call in facts.in_flight.values()) else self.pattern(part)

    def steering_text(self, part: Speech) -> str:
        """The message: what the agent does, and what it is expected to do."""
        return (
            f"You have written {part.count} messages in a row without calling a tool, so nothing has changed. Do the "
            "next step with a tool now. If the work is done, end the task. If you need a decision, ask one question "
            "and wait for its answer."
        )

    def is_repeated(self, key: str, part: Speech, observation: Observation) -> bool | None:  # noqa: ARG002  # one key
        """Another message shows the pattern; a call does not."""
        if observation.call is not None or isinstance(observation.event.data, _ACTION_EVENTS):
            return False
        return True if part.last == observation.event.number else None

    def ignored_after(self, thresholds: MonologueThresholds) -> int:
        """The number of messages that is a monologue."""
        return thresholds.messages


def _with_message(part: Speech, event: ObservedEvent, data: AgentMessage) -> Speech:
    if part.of_notice or data.parent_tool_use_id is not None or not data.content.strip():
        return part
    if part.last_at is not None and (event.at - part.last_at).total_seconds() < _MIN_SECONDS_APART:
        return replace(part, last_at=event.at)
    return Speech(
        count=part.count + 1,
        since=part.since or event.at,
        began=part.began or event.number,
        last=event.number,
        last_at=event.at,
        evidence=(*part.evidence, *([event.id] if event.id else []))[-MAX_EVIDENCE_IDS:],
    )


RULE: Final = Monologue()
