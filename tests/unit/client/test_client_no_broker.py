"""Commands that reach no broker: on a terminal they show what they wait for, and the error has the right remedy."""

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandherd.cli.exit_status import status_of
from sandherd.cli.stopped_stack import is_stopped
from sandherd.client.context import Context
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
        assert status_of(["--home", str(tmp_path), "tasks", "list"]) == 1
        assert "sandherd up" in capsys.readouterr().err
