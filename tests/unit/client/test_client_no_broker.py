"""Commands that reach no broker: on a terminal they show what they wait for, and the error has the right remedy."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.errors import BusError
from sandherd.cli.exit_status import run_command
from sandherd.cli.stopped_stack import is_stopped
from sandherd.client.connection_failures import connection_error
from sandherd.client.context import Context
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from tests.terminals import on_terminal


@pytest.fixture
def address() -> Iterator[str]:
    """Bound and never listening: every connection to it is refused."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"nats://127.0.0.1:{bound.getsockname()[1]}"


async def test_terminal_shows_that_a_command_connects(address: str, tmp_path: Path) -> None:
    """A command without an activity of its own, too."""

    async def start(*words: str, **streams: Any) -> asyncio.subprocess.Process:
        code = "from sandherd.cli import main; main()"
        return await asyncio.create_subprocess_exec(sys.executable, "-c", code, *words, **streams)

    status, shown = await on_terminal(start, "--home", str(tmp_path), "--nats-url", address, "tasks", "list")
    assert status == 1
    assert f"s connecting to {address}" in shown
    assert "--nats-url" in shown.rpartition("no broker")[2]


async def test_refusal_is_reported_also_if_the_last_attempt_saw_a_closed_connection(tmp_path: Path) -> None:
    """A broker that refuses a credential closes the connection at once: a client may see that before the reason."""
    refusals = [b"-ERR 'Authorization Violation'\r\n"] * 2  # as many as the first attempt has connections

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if refusals:
            writer.write(b'INFO {"max_payload":1048576}\r\n')
            await reader.readuntil(b"PING")
            writer.write(refusals.pop())
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"nats://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        context = Context(nats_url=url, credentials=None, project="p1", home=tmp_path)
        with pytest.raises(HerdError, match="refused the connection"):
            async with Herd.connect(context, patience=1):
                pass
    assert not refusals


@pytest.mark.parametrize(("phase", "stopped"), [("stopped", True), ("ready", False)])
def test_stack_that_was_stopped_is_known_as_such(
    address: str, tmp_path: Path, phase: str, stopped: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its address is tried once, and the remedy is to start it; one that should run is waited for."""
    (tmp_path / "context.json").write_text(json.dumps({"nats_url": address}))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "state.json").write_text(json.dumps({"phase": phase}))
    assert is_stopped(Context.resolve(home=tmp_path, environ={})) is stopped
    assert not is_stopped(Context.resolve(home=tmp_path, nats_url=address, environ={}))
    if stopped:
        assert run_command(["--home", str(tmp_path), "tasks", "list"]) == 1
        assert " up`" in capsys.readouterr().err


def test_home_without_a_stack_is_named(tmp_path: Path) -> None:
    """The address is then the default one, which the user has not named: another stack may listen there, or none."""
    context = Context.resolve(home=tmp_path / "no stack", environ={})
    error = connection_error(context, BusError("refused"))
    assert error.line == (
        f"no stack was started in {tmp_path}/no stack, and there is no broker at {context.nats_url}; "
        f"name another folder with --home, or start a stack with `sandherd --home '{tmp_path}/no stack' up`"
    )
    unnamed = Context.resolve(environ={"SANDHERD_HOME": str(tmp_path)})
    assert "start a stack with `sandherd up`" in connection_error(unnamed, BusError("refused")).line
