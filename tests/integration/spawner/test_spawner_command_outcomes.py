"""The table of commands, with the real services: the events of accepted and refused commands."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from message_relay.main import compose as compose_relay
from sandherd.contracts.command_outcomes import OUTCOMES
from sandherd.contracts.commands import (
    COMMANDS,
    CancelTask,
    Command,
    CreateSandbox,
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    RetryTask,
    SendMessage,
    SubmitTask,
    TerminateSandbox,
)
from sandherd.contracts.names import new_name
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.polling import eventually

SLEEPER = ["sleep", "3600"]


@pytest.fixture
async def services(spawner: Callable[..., Service], herd: Broker) -> AsyncIterator[None]:
    """The services that handle commands."""
    async with AsyncExitStack() as stack:
        for service in (compose_relay(herd.settings(Principal.MESSAGE_RELAY)), spawner()):
            await stack.enter_async_context(service.running())
        yield


def found(person: Any, entity: str, data: Command, part: str) -> list[Any]:
    """The events in the table that are about the command's entity, by their place in the table."""
    types = {event.type for event in getattr(OUTCOMES[type(data)], part)}
    return [event for event in person.unique() if event["subject"] == entity and event["type"] in types]


async def accepted(person: Any, data: Command, entity: str) -> None:
    """Send a command, and wait for another event that shows that it was accepted."""
    before = len(found(person, entity, data, "accepted"))
    await person.command(data, entity)
    await eventually(lambda: len(found(person, entity, data, "accepted")) > before, data.type)


async def refused(person: Any, data: Command, entity: str) -> None:
    """Send a command, and wait for the event that refuses it."""
    command = await person.command(data, entity)
    await eventually(
        lambda: (
            str(command.id) in {event["data"].get("command_id") for event in found(person, entity, data, "refused")}
        ),
        data.type,
    )


async def ended(person: Any, data: Command, entity: str) -> None:
    await eventually(lambda: found(person, entity, data, "ends"), data.type)


def test_every_command_is_in_the_table() -> None:
    """Every command is in the table once, and has events for acceptance and refusal."""
    assert {command.type for command in OUTCOMES} == COMMANDS.keys()
    assert all(outcome.accepted and outcome.refused for outcome in OUTCOMES.values())


async def test_commands_about_tasks(services: None, person: Any) -> None:
    """Submit, cancel and retry have their events; a repeated submission has no further one; others are refused."""
    task = new_name("task")
    submit = SubmitTask(task=task, spec=person.spec(SLEEPER))
    await accepted(person, submit, task)
    await person.command(submit, task)
    await refused(person, SubmitTask(task=task, spec=person.spec(["true"])), task)
    assert len(found(person, task, submit, "accepted")) == 1
    await refused(person, RetryTask(task=task), task)
    await accepted(person, CancelTask(task=task), task)
    await ended(person, submit, task)
    await refused(person, CancelTask(task=task), task)
    await accepted(person, RetryTask(task=task), task)
    await accepted(person, CancelTask(task=task), task)
    await refused(person, CancelTask(task="task-none"), "task-none")
    await person.all_gone()


async def test_commands_about_sandboxes(services: None, person: Any) -> None:
    """Create, extend, pause, resume and terminate have their events; repetitions change nothing."""
    sandbox = new_name("sbx")
    create = CreateSandbox(sandbox=sandbox)
    await accepted(person, create, sandbox)
    await person.command(create, sandbox)
    await refused(person, CreateSandbox(sandbox=sandbox, requested_by="ada"), sandbox)
    await person.sandbox_is(sandbox, "running")
    await accepted(person, ExtendSandbox(sandbox=sandbox, seconds=100_000), sandbox)
    await person.command(ExtendSandbox(sandbox=sandbox, seconds=1), sandbox)
    pausing = [(PauseSandbox, "paused"), (ResumeSandbox, "running")]
    for command, state in pausing if await can_pause(person, sandbox) else []:
        await accepted(person, command(sandbox=sandbox), sandbox)
        await person.sandbox_is(sandbox, state)
    await refused(person, SendMessage(message=new_name("msg"), sandbox="sbx-none", content="hi"), "sbx-none")
    end = TerminateSandbox(sandbox=sandbox, reason="done")
    await accepted(person, end, sandbox)
    await ended(person, end, sandbox)
    await refused(person, end, sandbox)
    for data in (create, ExtendSandbox(sandbox=sandbox, seconds=1), end):
        assert len(found(person, sandbox, data, "accepted")) == 1
    await person.all_gone()


async def can_pause(person: Any, sandbox: str) -> bool:
    """Whether this host's runtime can pause sandboxes, which needs control groups."""
    data = PauseSandbox(sandbox=sandbox)
    await person.command(data, sandbox)
    await eventually(lambda: found(person, sandbox, data, "accepted") or found(person, sandbox, data, "refused"))
    if not found(person, sandbox, data, "accepted"):
        return False
    await accepted(person, ResumeSandbox(sandbox=sandbox), sandbox)
    await person.sandbox_is(sandbox, "running")
    return True
