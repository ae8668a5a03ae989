"""Every command with a herd whose replies are hostile: it prints no control or invisible characters."""

import asyncio
import inspect
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
from nats.aio.msg import Msg

from sandherd.cli.app import build
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.stack.broker import Broker
from sandherd.webhook_signatures import new_secret
from tests.integration.client.hostile import HOSTILE, PROBLEM, forbidden, reply
from tests.integration.client.hostile_commands import (
    ASKING,
    BATCH,
    FOLLOWING,
    GIVEN,
    NAMED,
    REFUSED,
    SIGNING,
    VALUE,
    Words,
)

Command = Callable[..., Awaitable[tuple[int, str, str]]]
_CONNECTS = re.compile(r"\b(run_with_herd|run_as_operator|show_list|show_one|show_change)\(|Herd\.connect")
_BATCH = {"tasks": [{"name": "one", "text": "do it", "argv": ["true"], "secrets": {"A": "absent"}}]}


def _commands(group: typer.Typer, before: Words = ()) -> Iterator[tuple[Words, Callable[..., Any]]]:
    for command in group.registered_commands:
        assert command.callback is not None
        yield (*before, command.name or command.callback.__name__.replace("_", "-")), command.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _commands(inner.typer_instance, (*before, str(inner.name)))


def _connects(command: Callable[..., Any]) -> bool:
    """Whether the command's module connects to the herd."""
    return _CONNECTS.search(Path(inspect.getfile(command)).read_text()) is not None


def test_every_command_is_in_a_table() -> None:
    """Every command is in one of the tables, so that a new command must be added."""
    found = dict(_commands(build()))
    tested = ASKING.keys() | REFUSED.keys() | GIVEN.keys() | FOLLOWING
    assert found.keys() == tested | NAMED
    assert not tested & NAMED
    assert not {name for name in NAMED if _connects(found[name])}
    assert {name for name in tested if _connects(found[name])} == tested - {("doctor",)}  # which has its own checks


@pytest.fixture
async def answering(herd: Broker) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Replies to every request of users with the bytes made for it, by the real credentials of the services."""
    async with AsyncExitStack() as stack:
        services = {Principal.SPAWNER, Principal.EVENT_INGEST, Principal.MONITOR, Principal.MESSAGE_RELAY}
        buses = {str(one): await stack.enter_async_context(herd.bus(one)) for one in services}

        async def answer(make: Callable[[str, Any], bytes]) -> None:
            for name, request in REQUESTS.items():
                bus = buses.get(request.answered_by)
                if bus is None or name in {"spawner.credential", "spawner.fetch", "spawner.peers"}:
                    continue

                async def respond(message: Msg, document: bytes = make(name, request.Answer)) -> None:
                    await message.respond(document)

                subject = request_subject(name, "x").removesuffix("x") + "*"
                await bus.client.subscribe(subject, cb=respond)
            for bus in buses.values():
                await bus.flush()

        yield answer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / VALUE).write_text("a secret")
    (tmp_path / SIGNING).write_text(new_secret())
    (tmp_path / BATCH).write_text(json.dumps(_BATCH))


def _clean(words: Words, out: str, err: str) -> None:
    found = forbidden(out + err)
    assert not found, (words, found)
    assert "Traceback" not in err


@pytest.mark.parametrize("output", ["table", "json"])
async def test_hostile_replies_are_neutralised(
    answering: Callable[..., Awaitable[None]], sandherd: Command, output: str
) -> None:
    """Every text of every reply is made harmless, as a table and as JSON; it is shown and not dropped."""
    for name, request in REQUESTS.items():
        await asyncio.to_thread(reply, name, request.Answer)
    await answering(reply)
    seen = 0
    for command, words in ASKING.items():
        # To a pipe a command writes the exact output; to a terminal it does not: test_client_terminal_text.py.
        form = "json" if command == ("exec",) else output
        _, out, err = await sandherd(*command, *words, "-o", form)
        _clean(command, out, err)
        seen += "<U+202E>" in out + err or "\\u202e" in out
    assert seen >= 19, seen


async def test_hostile_refusals_are_neutralised(answering: Callable[..., Awaitable[None]], sandherd: Command) -> None:
    """A reason, a remedy and a field in an error are made harmless in every command that sends requests."""
    await answering(lambda _name, _answer: PROBLEM)
    for command, words in REFUSED.items():
        _, out, err = await sandherd(*command, *words)
        _clean(command, out, err)
        if command not in {
            ("doctor",),
            ("sandboxes", "prune"),
            ("dead", "list"),
            ("dead", "show"),
            ("dead", "requeue"),
            ("projects", "create"),
            ("projects", "set"),
            ("budgets", "set"),
            ("webhooks", "secret"),
            ("history", "status"),
            ("history", "hold"),
            ("history", "release"),
            ("history", "archives"),
            ("history", "restore"),
        }:
            # These are for operators, send several requests, or send none.
            assert "␛[2J" in err, command


async def test_hostile_arguments_are_neutralised(sandherd: Command) -> None:
    """A pasted name is made harmless in an error."""
    for command in sorted({*NAMED, *GIVEN}):
        _, out, err = await sandherd(*command, f"--no-such-{HOSTILE}")
        _clean(command, out, err)
    for command, words in ASKING.items():
        if words:
            # The text of a task is free: without a program it is refused if a command has to do it.
            more = ["--harness", "command"] if command == ("run",) else []
            _, out, err = await sandherd(*command, HOSTILE, *more)
            _clean(command, out, err)
