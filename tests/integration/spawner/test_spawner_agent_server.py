"""The real OpenHands agent server beside a real worker, in the process runtime, during the life of one sandbox."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sandherd import processes
from sandherd.bus.connection import RefusedError
from sandherd.contracts.agent_server import AgentServer
from sandherd.contracts.commands import TerminateSandbox
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import AgentServerView, GetAgentServer
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.runtimes.bubblewrap import INSIDE
from tests.drivers.toolchains import TOOLCHAINS, interpreter
from tests.integration.spawner.entry_paths import assert_confined, check_code
from tests.live_files import holding
from tests.patience import PATIENCE

pytestmark = [pytest.mark.agents, pytest.mark.timeout(900)]
SECONDS = 150


class Served:
    """A sandbox with an agent server, and a user who requests it."""

    def __init__(self, person: Any, sandbox: str) -> None:
        self.person, self.sandbox = person, sandbox

    async def ask(self, *, with_key: bool = False) -> AgentServerView:
        view: AgentServerView = await self.person.bus.ask(
            GetAgentServer(sandbox=self.sandbox, with_key=with_key), "p1", timeout=PATIENCE
        )
        return view

    async def call(self, view: AgentServerView, path: str, key: str | None = None, **body: Any) -> tuple[int, Any]:
        """Send an HTTP request to the server; returns its response."""
        headers = {"X-Session-API-Key": key} if key else {}
        async with aiohttp.ClientSession(headers=headers) as http:
            requested = http.post(f"{view.url}{path}", json=body) if body else http.get(f"{view.url}{path}")
            async with requested as answer:
                return answer.status, await answer.json()

    async def event_data(self, action: str, start: int = 1) -> dict[str, Any]:
        """Wait for the event of this start; returns its data."""

        def find() -> dict[str, Any] | None:
            found = (e["data"] for e in self.person.unique() if e["type"] == f"agent.{action}")
            return next((data for data in found if data["start"] == start), None)

        event: dict[str, Any] = await self.person.eventually(find, seconds=SECONDS)
        return event

    def members(self) -> list[processes.ProcessId]:
        """The living processes of this sandbox, as the host sees them."""
        mark = b"SANDHERD_SANDBOX_ID=" + self.sandbox.encode()
        return [found for pid in processes.pids() if mark in _environment(pid) and (found := processes.find(pid))]


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
async def served(spawner: Callable[..., Service], person: Any) -> AsyncIterator[Served]:
    await asyncio.to_thread(interpreter, "openhands")
    async with spawner(toolchains=TOOLCHAINS).running():
        limits = SandboxLimits(memory_mb=2048)
        sandbox = await person.create(limits=limits, agent_server=AgentServer(restarts=1, start_seconds=SECONDS))
        yield Served(person, sandbox)


@pytest.mark.own_broker
@pytest.mark.long  # cheaper: test_runtimes_agent_server; its port: test_network_attacks (test_sandbox_does_not_reach…)
async def test_agent_server_runs_and_ends_with_its_sandbox(served: Served, herd: Broker, home: Path) -> None:
    """The server responds at its URL only to its key, which is only in the sandbox and in the reply.

    If it is killed, it is restarted on another port, and nothing of the first remains. It ends with its sandbox, and so
    does a terminal that it started.
    """
    await served.person.sandbox_is(served.sandbox, "running")
    await served.event_data("server_ready")
    key = (await served.ask(with_key=True)).key
    assert key is not None
    await _answers_to_its_key_alone(served, key, herd)
    work = home / "sandboxes" / served.sandbox / "work"
    assert (work / "made-by-it").exists()
    await _is_confined_like_an_agent(served, key, work)
    await _is_started_again(served, key)
    await _ends_with_its_sandbox(served)
    assert key not in json.dumps(served.person.events)
    assert holding(key.encode(), home, herd.home) == []


async def _answers_to_its_key_alone(served: Served, key: str, herd: Broker) -> None:
    view = await served.ask()
    assert (view.state, view.starts, view.key) == ("ready", 1, None)
    assert view.url is not None
    assert view.url.startswith("http://127.0.0.1:")  # a port of the host that leads to the sandbox's own
    assert (await served.call(view, "/health"))[0] == 200
    assert (await served.call(view, "/api/conversations/count"))[0] == 401
    assert await served.call(view, "/api/conversations/count", key) == (200, 0)
    command = "tmux new-session -d 'sleep 4711' && pwd && touch made-by-it"
    status, ran = await served.call(view, "/api/bash/execute_bash_command", key, command=command)
    assert (status, ran["exit_code"], ran["stdout"].strip()) == (200, 0, f"{INSIDE}/work")
    assert not any(key.encode() in _line(pid) for pid in processes.pids())
    async with herd.bus(Principal.CLIENT, project="p2") as stranger:
        with pytest.raises(RefusedError) as caught:
            await stranger.ask(GetAgentServer(sandbox=served.sandbox, with_key=True), "p2", timeout=PATIENCE)
        assert caught.value.problem.code is Code.NOT_FOUND


async def _is_confined_like_an_agent(served: Served, key: str, work: Path) -> None:
    """Check what the server runs for a holder of its key, which has the server's own permissions."""
    server = await asyncio.start_server(lambda _reader, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        code = check_code("server", server.sockets[0].getsockname()[1])
        (work / "check.py").write_text(code)
        status, ran = await served.call(
            await served.ask(), "/api/bash/execute_bash_command", key, command="python3 -I check.py"
        )
    assert (status, ran["exit_code"]) == (200, 0), ran
    assert_confined(ran["stdout"], work, "server")


async def _is_started_again(served: Served, key: str) -> None:
    (first,) = [one for one in served.members() if b"openhands.agent_server" in _line(one.pid)]
    terminals = [one for one in served.members() if b"tmux" in _line(one.pid)]
    assert terminals
    first.signal(signal.SIGKILL)
    failed = await served.event_data("server_failed")
    assert (failed["signal"], failed["restarts_left"]) == (9, 1)
    assert not [one for one in terminals if one.alive()]
    await served.event_data("server_ready", start=2)
    again = await served.ask(with_key=True)
    assert (again.state, again.starts, again.key) == ("ready", 2, key)
    assert (await served.call(again, "/api/conversations/count", key))[0] == 200


async def _ends_with_its_sandbox(served: Served) -> None:
    person, sandbox, before = served.person, served.sandbox, served.members()
    await person.command(TerminateSandbox(sandbox=sandbox, reason="seen enough"), sandbox)
    await served.event_data("server_stopped", start=2)
    await person.all_gone()
    assert not [one for one in before if one.alive()]
    kinds = [kind for kind in person.types(sandbox) if kind.startswith("agent.server") or kind == "agent.shutdown"]
    assert kinds == [
        *("agent.server_started", "agent.server_ready", "agent.server_failed"),
        *("agent.server_started", "agent.server_ready", "agent.server_stopped", "agent.shutdown"),
    ]
    with pytest.raises(RefusedError) as caught:
        await served.ask()
    assert caught.value.problem.code is Code.CONFLICT
    person.check_sequences()
