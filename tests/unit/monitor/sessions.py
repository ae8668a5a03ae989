"""Sessions of agents as events, with the times between them, and what one guardian rule finds in them."""

from collections.abc import Iterable
from functools import reduce
from itertools import count
from typing import Any

from monitor.evaluation import first_finding as _first
from monitor.facts import Observation, ObservedEvent
from monitor.rule_set import ALL, RuleSet
from monitor.rules.rule import Pattern
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold


class WorkSession:
    """Numbers and times the events of one agent, in the order in which they are made."""

    def __init__(self, story: Any) -> None:
        self.story = story
        self.at = 0.0
        self._calls = count(1)

    def event(self, type: str, after: float = 1.0, **fields: Any) -> ObservedEvent:
        """An event, this number of seconds after the previous one."""
        self.at += after
        seen: ObservedEvent = self.story.seen(type, self.at, **fields)
        return seen

    def response(self, text: str, after: float = 4.0) -> list[ObservedEvent]:
        """A response of the model that is only a text."""
        return [
            self.event("agent.message", after, content=text, content_length=len(text)),
            self.event("agent.assistant_message", 0.1, model="m"),
        ]

    def call(
        self,
        command: Any,
        result: str = "r",
        *,
        after: float = 4.0,
        tool: str = "Bash",
        takes: float = 1.0,
        **facts: Any,
    ) -> list[ObservedEvent]:
        """A call of a tool and its end. A text is the command of a shell, anything else the input."""
        key = f"t{next(self._calls)}"
        given = {"command": command} if isinstance(command, str) else command
        subtype = facts.pop("event_subtype", None)
        begin = self.event("agent.tool_use", after, tool=tool, tool_use_id=key, input=given, event_subtype=subtype)
        facts = {"outcome": "ok"} | facts
        return [begin, self.event("agent.tool_result", takes, tool_use_id=key, result=result, **facts)]

    def edit(self, path: str = "a.py", content: str = "", *, after: float = 3.0, **fields: Any) -> list[ObservedEvent]:
        """A change of a file to this content."""
        digest = f"{hash(content) & (2**256 - 1):064x}"
        known = {"file_path": path, "change_type": "modified", "content_sha256": digest} | fields
        return [self.event("agent.file_edited", after, **known)]

    def folded(self, rule: str, events: Iterable[ObservedEvent]) -> tuple[Any, Observation]:
        """The part of a rule after these events, and the last of them."""
        listed = list(events)
        state = reduce(fold, listed, None)
        assert state is not None
        return state.parts[rule], Observation(listed[-1])


def states(events: Iterable[ObservedEvent], rules: RuleSet = ALL) -> Iterable[SandboxActivity]:
    """The state after each event."""
    state: SandboxActivity | None = None
    for event in events:
        state = fold(state, event, rules)
        if state is not None:
            assert not state.disabled
            yield state


def found_in(rule: str, state: SandboxActivity, rules: RuleSet = ALL) -> Pattern | None:
    """What one rule finds."""
    found = _first([one for one in rules.guardian if one.name == rule], state, state.last_sign_at)
    return None if found is None else found[1]


def first_found(rule: str, events: Iterable[ObservedEvent], rules: RuleSet = ALL) -> Pattern | None:
    """What a rule finds after the last event."""
    *_, last = states(events, rules)
    return found_in(rule, last, rules)


def ever_found(rule: str, events: Iterable[ObservedEvent], rules: RuleSet = ALL) -> bool:
    """Whether a rule finds something after any of these events."""
    return any(found_in(rule, state, rules) is not None for state in states(events, rules))
