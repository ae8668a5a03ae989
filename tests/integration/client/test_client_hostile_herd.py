"""Every command against a herd whose answers are hostile: nothing that a screen obeys, or hides, is printed."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import typer
from nats.aio.msg import Msg

from sandherd.client.cli.app import app
from sandherd.contracts.requests import REQUESTS
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.stack.broker import Broker
from tests.integration.client.hostile import HOSTILE, PROBLEM, forbidden, reply

Command = Callable[..., Awaitable[tuple[int, str, str]]]
_SANDBOX, _TASK = "sbx-one", "task-one"
ASKING: dict[tuple[str, ...], list[str]] = {
    ("exec",): [_SANDBOX, "--status", "exc-one"],
    ("cp",): [f"{_SANDBOX}:x", "here"],
    ("ls",): [_SANDBOX, "-r"],
    ("agent-server",): [_SANDBOX, "--key"],
    ("runtimes",): [],
    ("events",): [_SANDBOX],
    ("trajectory",): [_SANDBOX],
    ("logs",): [_SANDBOX],
    ("audit",): [_SANDBOX],
    ("doctor",): [],
    ("tasks", "list"): [],
    ("tasks", "get"): [_TASK],
    ("sandboxes", "list"): [],
    ("sandboxes", "get"): [_SANDBOX],
    ("sandboxes", "prune"): ["--now"],
    ("approvals", "list"): ["--all"],
    ("subscriptions", "create"): ["mine"],
    ("subscriptions", "list"): [],
    ("subscriptions", "delete"): ["mine"],
    ("secrets", "list"): [],
    ("secrets", "delete"): ["mine"],
    ("dead", "list"): [],
    ("dead", "show"): ["1"],
    ("dead", "requeue"): ["1"],
}
"""What asks the herd and prints what it answers."""
REFUSED: dict[tuple[str, ...], list[str]] = ASKING | {
    ("exec",): [_SANDBOX, "--", "true"],
    ("sandboxes", "extend"): [_SANDBOX, "5m"],
}
"""What ends with the refusal that the herd answers."""
NAMED: dict[tuple[str, ...], str] = {
    ("run",): "waits for the end of a task; only its arguments and refusals are tested here",
    ("send",): "waits for a receipt: with a real sandbox, too",
    ("tasks", "submit"): "prints names of its own",
    ("tasks", "cancel"): "the same",
    ("tasks", "retry"): "the same",
    ("sandboxes", "create"): "the same",
    ("sandboxes", "pause"): "waits for a state",
    ("sandboxes", "resume"): "waits for a state",
    ("sandboxes", "extend"): "waits for a time",
    ("sandboxes", "terminate"): "prints what was given",
    ("approvals", "grant"): "waits for an answer",
    ("approvals", "deny"): "waits for an answer",
    ("up",): "local",
    ("down",): "local",
    ("status",): "local",
    ("provision",): "local",
    ("backup",): "local",
    ("restore",): "local",
    ("replay",): "local",
    ("secrets", "set"): "waits for a value on standard input; prints the name that was given",
    ("credentials", "create"): "local",
    ("harness", "install"): "local",
    ("harness", "list"): "local",
    ("image", "build"): "local",
    ("image", "context"): "local",
    ("identity", "init"): "local",
    ("identity", "push"): "local",
    ("config", "show"): "local",
}
"""What is given hostile arguments here instead, which its error repeats; and why."""


def _commands(group: typer.Typer, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        yield (*before, command.name or getattr(command.callback, "__name__", "").replace("_", "-"))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from _commands(inner.typer_instance, (*before, str(inner.name)))


def test_no_command_is_forgotten() -> None:
    """Each that the program has is in one of the tables above: a new one has to be put there."""
    assert set(_commands(app)) == ASKING.keys() | NAMED.keys()


@pytest.fixture
async def answering(herd: Broker) -> AsyncIterator[Callable[..., Awaitable[None]]]:
    """Answers every request of people with the bytes that are made of it, by the real credentials of the services."""
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
                await bus.settle()

        yield answer


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _clean(words: tuple[str, ...], out: str, err: str) -> None:
    found = forbidden(out + err)
    assert not found, (words, found)
    assert "Traceback" not in err


@pytest.mark.parametrize("output", ["table", "json"])
async def test_hostile_answers_are_neutralised(
    answering: Callable[..., Awaitable[None]], sandherd: Command, output: str
) -> None:
    """In every text of every answer: as a table, and as JSON. What is hostile is shown, not dropped."""
    for name, request in REQUESTS.items():
        await asyncio.to_thread(reply, name, request.Answer)
    await answering(reply)
    seen = 0
    for command, words in ASKING.items():
        # To a pipe a command's output goes exactly as it is; to a terminal not: test_client_terminal_text.py.
        form = "json" if command == ("exec",) else output
        _, out, err = await sandherd(*command, *words, "-o", form)
        _clean(command, out, err)
        seen += ("<U+202E>" if output == "table" else "\\u202e") in out + err
    assert seen >= 12, seen


async def test_hostile_refusals_are_neutralised(answering: Callable[..., Awaitable[None]], sandherd: Command) -> None:
    """An end reason, a remedy and a field in an error message: finding 13a of issue 11, for every command that asks."""
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
        }:
            # These are an operator's, or ask on.
            assert "␛[2J" in err, command


async def test_hostile_arguments_are_neutralised(sandherd: Command) -> None:
    """A name that somebody pasted comes back in an error without what a screen obeys."""
    for command in NAMED:
        _, out, err = await sandherd(*command, f"--no-such-{HOSTILE}")
        _clean(command, out, err)
    for command, words in ASKING.items():
        if words:
            _, out, err = await sandherd(*command, HOSTILE)
            _clean(command, out, err)
