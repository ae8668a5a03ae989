"""Sessions of tool calls for tests of the rules about them."""

from collections.abc import Callable
from datetime import timedelta
from functools import reduce
from itertools import count
from typing import Any

from monitor.evaluation import current_pattern, part_of
from monitor.facts import Observation, ObservedEvent
from monitor.rule_set import ALL
from monitor.rules.rule import MAX_EVIDENCE, GuardianRule, Pattern
from monitor.sandbox_state import SandboxActivity
from monitor.state_fold import fold
from monitor.tool_calls import after_call_end
from sandherd.contracts.events import EVENTS

NAMES = ("loop", "cycle", "fan_out", "error_streak", "denials", "repeat_varied")


class Session:
    """Tool calls of one sandbox, five seconds apart."""

    def __init__(self, story: Any) -> None:
        self.story = story
        self.at = 0.0
        self.keys = count()
        self.events: list[ObservedEvent] = []

    def begin(self, command: str = "ls", *, tool: str = "Bash", parent: str | None = None) -> str:
        key = f"call-{next(self.keys)}"
        given = {"command": command} if tool == "Bash" else {"path": command}
        self._add("agent.tool_use", tool=tool, tool_use_id=key, input=given, parent_tool_use_id=parent)
        return key

    def end(self, key: str, result: str = "r", outcome: str = "ok", **fields: Any) -> None:
        self._add("agent.tool_result", tool_use_id=key, result=result, outcome=outcome, **fields)

    def call(self, command: str = "ls", result: str = "r", *, wait: float = 5, takes: float = 1, **fields: Any) -> None:
        """One call after another."""
        self.at += wait
        key = self.begin(command, tool=fields.pop("tool", "Bash"), parent=fields.get("parent_tool_use_id"))
        self.at += takes
        self.end(key, result, **fields)

    def together(self, *calls: tuple[str, str], **fields: Any) -> None:
        """Calls of one response: command and result of each."""
        self.at += 5
        keys = [self.begin(command) for command, _ in calls]
        for key, (_, result) in zip(keys, calls, strict=True):
            self.end(key, result, **fields)

    def edit(self, content: str, path: str = "a.py") -> None:
        self._add("agent.file_edited", file_path=path, change_type="modified", content_sha256=f"{content:0>64}")

    def message(self) -> None:
        self._add("message.acknowledged", message_id="m1", message_type="user_message")

    def _add(self, kind: str, **fields: Any) -> None:
        self.events.append(self.story.seen(kind, self.at, **fields))

    @property
    def state(self) -> SandboxActivity:
        state = reduce(fold, self.events, None)
        assert state is not None
        assert state.disabled == {}
        return state

    def found(self, rule: str) -> Pattern | None:
        """What a rule finds by its default thresholds."""
        return evaluated(self.state, rule)

    def step(self, rule: str) -> str | None:
        """The step of the ladder that it reaches."""
        found, one = self.found(rule), ALL.by_name[rule]
        assert isinstance(one, GuardianRule)
        return None if found is None else one.step(found, ALL.thresholds[rule])

    def all_found(self) -> set[str]:
        return {rule for rule in NAMES if self.found(rule) is not None}


def evaluated(state: SandboxActivity, rule: str) -> Pattern | None:
    one = ALL.by_name[rule]
    assert isinstance(one, GuardianRule)
    now = state.last_sign_at + timedelta(seconds=1)
    found = one.evaluate(part_of(state, one, ALL), state, now, ALL.thresholds[rule])
    if found is not None:
        assert 0 < len(found.evidence) <= MAX_EVIDENCE
        text = one.steering_text(part_of(state, one, ALL))
        assert 40 < len(text) < 1000
        seen = current_pattern(rule, state, ALL)
        assert seen is not None
        assert seen.key == found.key
    return found


def obeyed(session: Session, rule: str, act: Callable[[], None]) -> list[bool | None]:
    """What the rule makes of each call that follows its pattern."""
    one, found, first = ALL.by_name[rule], session.found(rule), len(session.events)
    assert isinstance(one, GuardianRule)
    assert found is not None
    act()
    state, repeated = reduce(fold, session.events[:first], None), []
    for event in session.events[first:]:
        before, state = state, fold(state, event)
        assert before is not None
        assert state is not None
        closes = EVENTS[event.type].closes
        call = (
            after_call_end(before, event, event.data, closes)[1]
            if closes is not None and event.data is not None
            else None
        )
        if call is not None:
            repeated.append(one.is_repeated(found.key, part_of(state, one, ALL), Observation(event, call)))
    return repeated
