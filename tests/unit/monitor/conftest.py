"""Feeds the monitor a sequence of events, written in short."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from monitor.facts import ObservedEvent
from monitor.rule_set import RuleSet
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import derived_uuid
from tests.unit.monitor.rule_sets import with_thresholds
from tests.unit.monitor.sessions import WorkSession
from tests.unit.monitor.tool_sessions import Session

T0 = datetime(2026, 11, 20, 12, tzinfo=UTC)
RULES = with_thresholds("flooding", bytes=1000)
REQUIRED: dict[str, dict[str, Any]] = {
    "agent.started": {"timestamp": T0, "sdk": "command", "task": "t", "task_description_length": 1},
    "agent.heartbeat": {"timestamp": T0},
    "agent.tool_use": {"tool": "Bash", "tool_use_id": "1"},
    "agent.tool_completed": {"tool": "Bash", "tool_use_id": "1"},
    "agent.tool_result": {"tool_use_id": "1", "result": "r"},
    "agent.user_tool_result": {"tool_use_id": "1", "result": "r"},
    "agent.subagent_invoked": {"tool_use_id": "1", "subagent_type": "x"},
    "agent.subagent_completed": {"tool_use_id": "1"},
    "agent.model_call_started": {"call_id": "1"},
    "agent.model_call_completed": {"call_id": "1"},
    "agent.approval_requested": {"approval_id": "1", "tool": "Bash"},
    "approval.granted": {"approval_id": "1"},
    "approval.expired": {"approval_id": "1", "outcome": "denied"},
    "agent.exec_started": {"exec_id": "1", "command": ["ls"]},
    "agent.exec_completed": {"exec_id": "1", "state": "exited"},
    "sandbox.requested": {"runtime": "process"},
    "task.retry_scheduled": {"not_before": T0, "error": "e"},
    "task.failed": {"error": "e", "error_type": "dead"},
    "task.cancelled": {},
}


class Story:
    """Events of one herd, numbered as the stream numbers them, at seconds after T0."""

    def __init__(self) -> None:
        self.number = 0

    def seen(
        self,
        event_type: str,
        at: float = 0,
        sandbox: str = "sbx-1",
        *,
        task: str | None = "task-1",
        **fields: Any,
    ) -> ObservedEvent:
        self.number += 1
        model = EVENTS.get(event_type)
        given = REQUIRED.get(event_type, {}) | fields
        data = (
            model(**given) if model is not None and (given or event_type.startswith(("message.", "monitor."))) else None
        )
        id = derived_uuid(T0, sandbox, self.number)
        return ObservedEvent("p1", sandbox, event_type, self.number, T0 + timedelta(seconds=at), data, id, task)

    def call(
        self, key: str, at: float = 0, *, given: Any = "ls", result: str = "r", sandbox: str = "sbx-1"
    ) -> list[ObservedEvent]:
        """A tool call and its result."""
        return [
            self.seen("agent.tool_use", at, sandbox, tool="Bash", tool_use_id=key, input={"command": given}),
            self.seen("agent.tool_result", at, sandbox, tool_use_id=key, result=result),
        ]

    def loop(self, times: int, first: int = 0, at: float = 0) -> list[ObservedEvent]:
        """The same call with the same result, repeated."""
        return [event for number in range(times) for event in self.call(f"c{first + number}", at)]


@pytest.fixture
def story() -> Story:
    return Story()


@pytest.fixture
def session(story: Story) -> Session:
    return Session(story)


@pytest.fixture(scope="session")
def new_story() -> Callable[[], Story]:
    return Story


@pytest.fixture(scope="session")
def rules() -> RuleSet:
    return RULES


@pytest.fixture
def after() -> Callable[[float], datetime]:
    return lambda seconds: T0 + timedelta(seconds=seconds)


@pytest.fixture
def work(story: Story) -> WorkSession:
    return WorkSession(story)
