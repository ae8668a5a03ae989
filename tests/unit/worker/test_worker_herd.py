"""The herd's own tools: the real server, as an SDK starts it, with the worker's side behind it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import RequestTimeoutError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentError
from sandherd.contracts.harnesses import Approvals, ClaudeHarness, McpServer
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage
from sandherd.contracts.requests.worker import ListPeers, Peer, PeerList
from sandherd.contracts.states import SandboxState
from sandherd_worker.broker_session import CurrentConnection
from sandherd_worker.harnesses.approvals import ApprovalGate, policy
from sandherd_worker.herd.mcp_config import McpConfig, added
from sandherd_worker.herd.tool_socket import CallRefusedError
from sandherd_worker.herd.tools import HerdTools, ToolUser
from tests.patience import PATIENCE

DRIVERS = Path(__file__).parents[3] / "services" / "worker"
PEER = Peer(sandbox="sbx-2", task="task-2", state=SandboxState.RUNNING, text="the docs")


class Spawner:
    """Answers as the spawner does; or doesn't."""

    def __init__(self) -> None:
        self.there = True
        self.requested: list[tuple[str, str | None]] = []

    async def ask(self, question: ListPeers, project: str, *, sandbox: str, timeout: float) -> PeerList:
        self.requested.append((project, sandbox))
        if not self.there:
            raise RequestTimeoutError("no reply")
        return PeerList(peers=[PEER] if question.sandbox in {None, PEER.sandbox} else [])


class Server:
    """The server's process, as its client has it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._id = 0

    def ask(self, method: str, **params: Any) -> int:
        self._id += 1
        self.write({"jsonrpc": "2.0", "id": self._id, "method": method, "params": params})
        return self._id

    def write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")

    def call(self, tool: str, **arguments: str) -> int:
        return self.ask("tools/call", name=tool, arguments=arguments)

    async def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            found: dict[str, Any] = json.loads(await self.process.stdout.readline())
        return found

    async def call_result(self, tool: str, **arguments: str) -> tuple[str, bool]:
        name = self.call(tool, **arguments)
        answer = await self.answer()
        assert answer["id"] == name
        (content,) = answer["result"]["content"]
        return content["text"], answer["result"]["isError"]


async def no_one(question: str, granted: bool, reason: str | None, by_user: bool) -> None:
    raise AssertionError("no driver asks here")


async def gate_without_user(question: str) -> tuple[bool, str | None]:
    raise AssertionError("no user is asked here")


@pytest.fixture
def spawner() -> Spawner:
    return Spawner()


@pytest.fixture
async def desk(listener: Any) -> AsyncIterator[ApprovalGate]:
    desk = ApprovalGate(Approvals(otherwise="deny", timeout_seconds=600), listener.publish, no_one)
    yield desk
    await desk.close()


@pytest.fixture
async def herd(
    tmp_path: Path, assignment: Any, spawner: Spawner, listener: Any, desk: ApprovalGate
) -> AsyncIterator[McpConfig]:
    folder = tmp_path / ("long" * 40)
    folder.mkdir()
    line = CurrentConnection()
    bus: Any = spawner
    line.set(bus)
    herd = McpConfig(HerdTools(assignment(tmp_path), line), folder)
    await herd.open(ToolUser(listener.publish, lambda question: desk.request_answer(question, 3), lambda: 3))
    yield herd
    await herd.close()


@pytest.fixture
async def server(herd: McpConfig) -> AsyncIterator[Server]:
    server = await start(herd)
    yield server
    if server.process.returncode is None:
        server.process.kill()
    await server.process.wait()


async def start(herd: McpConfig, **other: str) -> Server:
    call_result = herd.server(Path(sys.executable), DRIVERS)
    process = await asyncio.create_subprocess_exec(
        call_result["command"],
        *call_result["args"],
        env={"PATH": os.environ["PATH"], **call_result["env"], **other},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    return Server(process)


def answer(approval_id: str, *, granted: bool, reason: str | None) -> InboxMessage:
    now = datetime.now(UTC)
    return InboxMessage(
        message="msg-1",
        project="p1",
        sandbox="sbx-1",
        content=ApprovalAnswer(approval_id=approval_id, granted=granted, reason=reason).model_dump_json(),
        message_type="approval",
        sent_at=now,
        expires_at=now + timedelta(hours=1),
    )


async def test_sdk_finds_three_tools(server: Server) -> None:
    """The protocol's list has them; an unknown method is an error, and an invalid request is ignored."""
    server.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
    server.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo={})
    about = (await server.answer())["result"]
    assert (about["protocolVersion"], about["capabilities"]) == ("2025-06-18", {"tools": {}})
    server.ask("tools/list")
    tools = (await server.answer())["result"]["tools"]
    assert [tool["name"] for tool in tools] == ["send_message", "list_peers", "ask_human"]
    server.ask("resources/list")
    assert (await server.answer())["error"]["code"] == -32601
    server.ask("initialize", protocolVersion="1999-01-01")
    assert (await server.answer())["result"]["protocolVersion"] == "2025-11-25"


async def test_message_to_another_agent_is_an_event(server: Server, listener: Any) -> None:
    """The agent receives the message's id; the message relay does the rest."""
    text, failed = await server.call_result("send_message", recipient="sbx-2", content="binomial.py is mine")
    (published,) = listener.events
    assert (published.type, published.recipient, published.content, published.turn) == (
        "agent.message_sent",
        "sbx-2",
        "binomial.py is mine",
        3,
    )
    assert published.message_id in text
    assert not failed


@pytest.mark.parametrize(
    ("recipient", "content", "why"),
    [
        ("sbx-9", "hello", "no agent works in sbx-9"),
        ("sbx-1", "hello", "your own sandbox"),
        ("sbx-2.>", "hello", "not a valid sandbox name"),
        ("sbx-2", " ", "text is missing"),
        ("sbx-2", "x" * 16_001, "the limit is 16000"),
    ],
)
async def test_message_to_invalid_recipient_is_refused_at_once(
    server: Server, listener: Any, recipient: str, content: str, why: str
) -> None:
    """The agent receives the reason, and no event is published."""
    text, failed = await server.call_result("send_message", recipient=recipient, content=content)
    assert failed
    assert why in text
    assert listener.events == []


async def test_message_that_cannot_be_published_is_refused(
    tmp_path: Path, assignment: Any, spawner: Spawner, listener: Any
) -> None:
    """The agent does not receive a success for a message that is not stored."""
    line = CurrentConnection()
    bus: Any = spawner
    line.set(bus)

    async def mute(data: EventData) -> bool:
        await listener.publish(AgentError(error=f"a {data.type} could not be published", phase="emit"))
        return False

    agent = ToolUser(mute, gate_without_user, lambda: 1)
    with pytest.raises(CallRefusedError, match="nothing was sent"):
        await HerdTools(assignment(tmp_path), line).use(agent, "send_message", {"recipient": "sbx-2", "content": "hm"})
    assert listener.types() == ["error"]


async def test_message_is_queued_and_list_refused_without_broker(
    server: Server, spawner: Spawner, listener: Any
) -> None:
    """The message waits with the events; the list of peers is unavailable."""
    spawner.there = False
    assert not (await server.call_result("send_message", recipient="sbx-9", content="hello"))[1]
    assert [event.recipient for event in listener.events] == ["sbx-9"]
    assert (await server.call_result("list_peers")) == ("the herd is unavailable; try again later", True)


async def test_peers_are_those_of_the_own_project(server: Server, spawner: Spawner) -> None:
    """The request is in the sandbox's own name, whatever the agent passes."""
    text, failed = await server.call_result("list_peers", project="p2", sandbox="sbx-7")
    assert PeerList.model_validate_json(text) == PeerList(peers=[PEER])
    assert not failed
    assert spawner.requested == [("p1", "sbx-1")]


@pytest.mark.parametrize(
    ("granted", "reason", "call_result"),
    [(True, "tabs", "tabs"), (True, None, "yes"), (False, "never", "no: never"), (False, None, "no")],
)
async def test_question_to_a_user_is_answered(
    server: Server,
    listener: Any,
    desk: ApprovalGate,
    eventually: Any,
    granted: bool,
    reason: str | None,
    call_result: str,
) -> None:
    """The question is an approval whatever the policy; other calls are processed meanwhile."""
    name = server.call("ask_human", question="tabs or spaces?")
    await eventually(lambda: listener.events, "it is asked")
    (requested,) = listener.events
    assert (requested.type, requested.tool, requested.reason, requested.timeout_seconds, requested.turn) == (
        "agent.approval_requested",
        "ask_human",
        "tabs or spaces?",
        600,
        3,
    )
    assert not (await server.call_result("list_peers"))[1]
    await desk.answer(answer(requested.approval_id, granted=granted, reason=reason))
    found = await server.answer()
    assert (found["id"], found["result"]["content"][0]["text"]) == (name, call_result)


async def test_unanswered_question_times_out(server: Server, listener: Any) -> None:
    """The agent receives the reason."""
    desk = ApprovalGate(Approvals(timeout_seconds=1), listener.publish, no_one)
    assert await desk.request_answer("is anybody there?", 1) == (False, "not answered within 1 s")


async def test_end_of_turn_withdraws_its_question(
    server: Server, listener: Any, desk: ApprovalGate, eventually: Any
) -> None:
    """The tool call returns, and a later decision is refused."""
    server.call("ask_human", question="tabs or spaces?")
    await eventually(lambda: listener.events, "it is asked")
    await desk.withdraw(1)
    assert "the turn has ended" in (await server.answer())["result"]["content"][0]["text"]


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_cancelled_call_withdraws_its_question(
    server: Server, listener: Any, desk: ApprovalGate, eventually: Any, how: str
) -> None:
    """A cancelled call and one whose server was killed withdraw their questions."""
    name = server.call("ask_human", question="tabs or spaces?")
    await eventually(lambda: listener.events, "it is asked")
    if how == "killed":
        server.process.kill()
    else:
        server.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": name}})
    await eventually(lambda: not desk.waiting, "nobody waits")


async def test_request_without_the_token_is_refused(herd: McpConfig, listener: Any) -> None:
    """A process without the token can neither read nor publish anything."""
    server = await start(herd, SANDHERD_HERD_TOKEN="guessed")
    call_result = await server.call_result("send_message", recipient="sbx-2", content="hello")
    assert call_result == ("the worker of this sandbox does not respond", True)
    assert listener.events == []
    assert server.process.stdin is not None
    server.process.stdin.close()
    assert await server.process.wait() == 0


def test_mcp_server_gets_the_secrets_it_names() -> None:
    """The values are those of the task's variables, and no other is passed on."""
    server = McpServer(command="tickets", args=["-v"], env={"URL": "u"}, secret_env=frozenset({"TOKEN"}))
    requested = ClaudeHarness(kind="claude", mcp_servers={"tickets": server})
    assert added(requested, {"TOKEN": "t0ken", "OTHER": "x"}) == {
        "tickets": {"command": "tickets", "args": ["-v"], "env": {"URL": "u", "TOKEN": "t0ken"}}
    }


@pytest.mark.parametrize(
    ("approvals", "verdict"),
    [
        (Approvals(otherwise="ask"), "allow"),
        (Approvals(tools={"mcp__*": "ask"}), "allow"),
        (Approvals(tools={"mcp__sandherd__*": "deny"}), "deny"),
        (Approvals(tools={"mcp__sandherd__ask_human": "ask"}), "ask"),
    ],
)
def test_question_to_a_user_needs_no_approval(approvals: Approvals, verdict: str) -> None:
    """The tool is allowed unless the policy names it or denies it."""
    assert policy(approvals, "mcp__sandherd__ask_human") == verdict
