"""One sandbox with an agent of each kind, and fixtures of the tests of all kinds."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest

from sandherd.bus.connection import Bus
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.names import new_name
from sandherd.contracts.principals import Principal
from sandherd.stack.broker import Broker
from spawner.runtimes.cgroups import open_groups
from tests.integration.worker.conformance.adapters import KINDS, Adapter, adapter
from tests.integration.worker.conformance.groups import Group

AT_LENGTH: Final = {
    "test_task_is_completed_and_reported": {"openhands"},
    "test_task_resumes_an_earlier_session": {"openhands", "acp", "claude"},
    "test_frozen_agent_continues_its_turn": {"openhands", "acp", "claude"},
    "test_oom_kill_is_reported_with_its_figures": {"openhands", "acp", "claude"},
    "test_heartbeats_come_during_a_long_turn": {"openhands", "acp", "claude"},
    "test_agents_are_killed_before_their_worker": {"openhands", "claude"},
    "test_killed_worker_leaves_nothing": {"openhands", "claude"},
    "test_stopped_worker_drains_within_its_grace": {"openhands", "acp", "claude"},
    "test_killed_agent_has_one_end": {"openhands", "claude"},
    "test_interrupt_keeps_the_session": {"openhands", "acp", "claude"},
    "test_message_reaches_the_working_agent": {"openhands", "claude"},
    "test_missing_session_fails_the_attempt_permanently": {"openhands", "claude"},
    "test_secrets_are_redacted": {"openhands", "acp"},
}
"""Claims that are the worker's rather than its agent's, and the kinds that only `make soak` starts for them: a start of
an OpenHands agent takes 5 s of CPU, one of a Claude agent 1 s. What each kind's driver does itself (sessions, messages,
interrupts, ends) is tested in tests/drivers for every kind, and a whole task of each kind in tests/e2e."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test for each kind; run a test about a victim for each process whose end is the agent's end."""
    if "which" in metafunc.fixturenames:
        victims = [(kind, which) for kind, one in KINDS.items() for which in one.victims]
        marked = [pytest.param(*victim, marks=_marks(metafunc, victim[0])) for victim in victims]
        metafunc.parametrize(("kind", "which"), marked)
    elif "agent" in metafunc.fixturenames:
        metafunc.parametrize("kind", [pytest.param(kind, marks=_marks(metafunc, kind)) for kind in KINDS])


def _marks(metafunc: pytest.Metafunc, kind: str) -> tuple[pytest.MarkDecorator, ...]:
    return (pytest.mark.long,) if kind in AT_LENGTH.get(metafunc.function.__name__, ()) else ()


@pytest.fixture
async def agent(kind: str, sandbox: Any) -> AsyncIterator[Adapter]:
    """An agent of this kind."""
    async with adapter(kind, sandbox) as made:
        yield made


@pytest.fixture
async def group(eventually: Any) -> AsyncIterator[Group]:
    """The control groups of one sandbox; every process in them is killed at the end."""
    groups = open_groups(f"sandherd-{new_name('test')}")
    assert None not in {groups.memory, groups.freezer}, "we may make no control groups here: run the tests as root"
    group = Group(groups, "sandbox")
    yield group
    await eventually(group.end, "the group is gone")
    groups.close()


@pytest.fixture
async def relay(herd: Broker) -> AsyncIterator[Bus]:
    """A connection that delivers."""
    async with herd.bus(Principal.MESSAGE_RELAY) as bus:
        yield bus


@pytest.fixture
def letter() -> Callable[..., InboxMessage]:
    """Creates messages."""

    def make(content: str, kind: Any = "user_message") -> InboxMessage:
        now = datetime.now(UTC)
        return InboxMessage(
            message=new_name("msg"),
            project="default",
            sandbox="sbx-1",
            content=content,
            message_type=kind,
            sent_at=now,
            expires_at=now + timedelta(hours=1),
        )

    return make
