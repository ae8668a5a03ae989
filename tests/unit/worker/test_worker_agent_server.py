"""The life of a server beside the worker, with a small one that responds, hangs or exits as configured."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandherd_worker.agent_server.server_process import (
    FAMILY,
    HealthCheckIntervals,
    ServerCommand,
    ServerProcess,
    free_port,
)
from sandherd_worker.agent_server.supervisor import FILE, StatusFile, Supervisor
from sandherd_worker.box import worker_environment
from sandherd_worker.processes import EXEC_VARIABLE, ProcessOwnership, Reaper

PROGRAM = Path(__file__).with_name("standing_server.py")
SOON = HealthCheckIntervals(start=20, poll=0.02, between=0.02, answer=0.2, misses=2, grace=2, rest=0.01)
KEY = "k" * 43


class Server:
    """A supervisor of the small server, and what it has published and stored."""

    def __init__(self, folder: Path, listener: Any, reaper: Reaper) -> None:
        self.folder, self.listener, self.reaper = folder, listener, reaper
        self.families = ProcessOwnership()
        self.supervisor: Supervisor

    def start(self, how: str, restarts: int = 1, pace: HealthCheckIntervals = SOON, ports: Sequence[int] = ()) -> None:
        what = ServerCommand(
            argv=lambda port: [sys.executable, str(PROGRAM), str(port), how, str(self.folder)],
            environment=lambda: {**os.environ, EXEC_VARIABLE: FAMILY},
            folder=self.folder,
            ports=ports,
        )
        self.supervisor = Supervisor(
            lambda stop: ServerProcess(what, pace, self.reaper, self.families, stop),
            StatusFile(self.folder / FILE, "openhands", KEY),
            self.listener.publish,
            restarts=restarts,
            pace=pace,
        )
        self.supervisor.start()

    @property
    def status_file(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / FILE).read_text())
        return found

    def left(self) -> list[int]:
        """What the small server has left behind, and is still there."""
        pids = [int(line) for line in (self.folder / "starts").read_text().split()]
        return [pid for pid in pids if _lives(pid)]


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
async def server(tmp_path: Path, listener: Any, reaper: Reaper) -> AsyncIterator[Server]:
    made = Server(tmp_path, listener, reaper)
    yield made
    await made.supervisor.stop()


async def test_server_is_ready_when_it_responds_and_ends_with_its_children(
    server: Server, eventually: Callable[..., Any]
) -> None:
    """Address and key are in a file for the owner alone; no event has the key."""
    server.start("well")
    await eventually(lambda: "server_ready" in server.listener.types(), "it is ready")
    assert (server.status_file["state"], server.status_file["starts"], server.status_file["key"]) == ("ready", 1, KEY)
    assert server.status_file["port"] == server.listener.events[-1].port
    assert (server.folder / FILE).stat().st_mode & 0o777 == 0o600
    assert len(server.left()) == 1
    await server.supervisor.stop()
    await server.supervisor.stop()
    assert server.left() == []
    assert server.status_file["state"] == "stopped"
    assert server.listener.types() == ["server_started", "server_ready", "server_stopped"]
    assert not any(KEY in event.model_dump_json() for event in server.listener.events)


async def test_failed_server_is_restarted_up_to_its_limit(server: Server, eventually: Callable[..., Any]) -> None:
    """Each failure has the exit status and last output; stopping a failed server publishes nothing."""
    server.start("brief", restarts=2)
    await eventually(lambda: server.listener.types().count("server_failed") == 3, "it is given up")
    failed = [event for event in server.listener.events if event.type == "agent.server_failed"]
    assert [(event.start, event.restarts_left) for event in failed] == [(1, 2), (2, 1), (3, 0)]
    assert (failed[0].exit_code, failed[0].signal) == (3, None)
    assert failed[0].error == "it has ended (exit status 3): that was enough"
    assert (server.status_file["state"], server.status_file["starts"]) == ("failed", 3)
    assert server.left() == []
    await server.supervisor.stop()
    assert server.listener.types().count("server_stopped") == 0
    assert server.status_file["state"] == "failed"


async def test_unresponsive_server_is_restarted(server: Server, eventually: Callable[..., Any]) -> None:
    """A server that runs but does not respond is killed and started again."""
    server.start("tired", restarts=1)
    await eventually(lambda: server.listener.types().count("server_ready") == 2, "it is ready again")
    failed = next(event for event in server.listener.events if event.type == "agent.server_failed")
    assert (failed.error, failed.exit_code, failed.signal) == ("it no longer responds", None, None)


async def test_server_that_never_responds_fails_to_start(server: Server, eventually: Callable[..., Any]) -> None:
    """The time to start is limited, and no process remains."""
    pace = HealthCheckIntervals(start=1, poll=0.02, between=1, answer=0.2, misses=2, grace=1, rest=0.01)
    server.start("deaf", restarts=0, pace=pace)
    await eventually(lambda: "server_failed" in server.listener.types(), "it is given up")
    assert "server_ready" not in server.listener.types()
    assert server.listener.events[-1].error == "it did not respond within 1 s"
    assert server.status_file["state"] == "failed"
    await eventually(lambda: server.left() == [], "nothing is left")


async def test_server_is_stopped_while_it_starts(server: Server, eventually: Callable[..., Any]) -> None:
    """Stopping does not wait for the start."""
    server.start("deaf")
    await eventually((server.folder / "starts").exists, "it has begun")
    await server.supervisor.stop()
    assert server.left() == []
    assert server.listener.types()[-1] == "server_stopped"


async def test_server_listens_on_the_first_free_port(server: Server, eventually: Callable[..., Any]) -> None:
    """Of the reachable ports the first free one is used; without one the server is not started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        busy, free = taken.getsockname()[1], free_port()
        server.start("well", ports=(busy, free))
        await eventually(lambda: "server_ready" in server.listener.types(), "it is ready")
        assert server.status_file["port"] == free
        await server.supervisor.stop()
        server.start("well", restarts=0, ports=(busy,))
        await eventually(lambda: "server_failed" in server.listener.types(), "it is given up")
    assert server.listener.events[-1].error.endswith(f"all reachable ports are in use: {busy}")


def test_worker_port_from_the_box_is_the_default() -> None:
    """The spawner's value of `SANDHERD_PORTS` has precedence over that of the box."""
    own = {"SANDHERD_PORTS": "12000", "OTHER": "x"}
    assert worker_environment({"PATH": "p"}, own)["SANDHERD_PORTS"] == "12000"
    assert worker_environment({"SANDHERD_PORTS": "8000"}, own)["SANDHERD_PORTS"] == "8000"
    assert "OTHER" not in worker_environment({}, own)
