"""Approval commands with the real relay and history on a real broker."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from nats.aio.msg import Msg

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.client import Herd, HerdError
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events.tools import AgentApprovalRequested
from sandherd.contracts.inbox_messages import ApprovalAnswer, InboxMessage, Receipt
from sandherd.contracts.requests import ListApprovals
from sandherd.contracts.states import ApprovalState
from sandherd.contracts.subjects import DELIVER, Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

SANDBOX = "sbx-one"
Command = Callable[..., Awaitable[tuple[int, str, str]]]


class Agent:
    """A worker with its own credential, in a sandbox that the spawner knows."""

    def __init__(self, herd: Broker, stack: AsyncExitStack) -> None:
        self._herd = herd
        self._stack = stack
        self.answers: list[ApprovalAnswer] = []
        self.refuses: str | None = None

    async def open(self) -> "Agent":
        self._bus = await self._stack.enter_async_context(
            self._herd.bus(Principal.WORKER, project="default", sandbox=SANDBOX)
        )
        spawner = await self._stack.enter_async_context(self._herd.bus(Principal.SPAWNER))
        record = {"sandbox": SANDBOX, "task": "task-one", "state": "running"}
        await spawner.js.publish(f"$KV.sandboxes.default.{SANDBOX}", json.dumps(record).encode())
        await self.listen()
        return self

    async def listen(self) -> None:
        subject = DELIVER.fill(project="default", sandbox=SANDBOX)
        self._hearing = await self._bus.client.subscribe(subject, cb=self._on_message)
        await self._bus.flush()

    async def leave(self) -> None:
        await self._hearing.unsubscribe()
        await self._bus.flush()

    async def _on_message(self, msg: Msg) -> None:
        if not msg.data:
            await msg.respond(b"")
            return
        message = InboxMessage.model_validate_json(msg.data)
        self.answers.append(ApprovalAnswer.model_validate_json(message.content))
        outcome = {"outcome": "rejected", "reason": self.refuses} if self.refuses else {"outcome": "acknowledged"}
        receipt = Receipt.model_validate({"message": message.message} | outcome)
        await msg.respond(receipt.model_dump_json(exclude_none=True).encode())

    async def ask(self, approval: str, **requested: Any) -> None:
        data = AgentApprovalRequested(approval_id=approval, tool="Bash", input={"command": "rm -r *"}, **requested)
        event = wrap(
            data,
            data.type,
            source=f"/sandherd/sandbox/{SANDBOX}",
            sequence=1,
            project="default",
            subject=SANDBOX,
            sandboxid=SANDBOX,
            time=datetime.now(UTC),
        )
        await self._bus.publish_event(event)


@pytest.fixture
async def agent(herd: Broker) -> AsyncIterator[Agent]:
    """An agent that can request approvals, with a running message-relay."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(compose_relay(herd.settings(Principal.MESSAGE_RELAY)).running())
        yield await Agent(herd, stack).open()


@pytest.fixture
async def history(herd: Broker, postgres: str) -> AsyncIterator[None]:
    """A running event-ingest."""
    async with compose_ingest(herd.settings(Principal.EVENT_INGEST, database_url=postgres)).running():
        yield


@pytest.fixture
def command(started: Callable[..., Any]) -> Command:
    """Run the command as a separate process: the services of the test write to this process's standard output."""

    async def run(*words: str) -> tuple[int, str, str]:
        process = await started(*words)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


async def shown(client: Herd, count: int, state: ApprovalState | None = ApprovalState.PENDING) -> None:
    """Wait until the history has this number of approvals."""
    async with asyncio.timeout(PATIENCE):
        while len((await client.connection.request(ListApprovals(state=state))).approvals) != count:
            await asyncio.sleep(0.02)


@pytest.mark.usefixtures("history")
async def test_waiting_approval_is_listed_and_granted(agent: Agent, client: Herd, command: Command) -> None:
    """`list` shows the agent's call; `grant` decides it; the list is then empty, and `--all` names who granted."""
    await agent.ask("toolu_1", reason="cleans up")
    await shown(client, 1)
    status, out, _ = await command("approvals", "list", "-o", "json")
    [view] = json.loads(out)["approvals"]
    assert (status, view["approval_id"], view["input"], view["reason"]) == (
        0,
        "toolu_1",
        {"command": "rm -r *"},
        "cleans up",
    )
    assert "rm -r *" in (await command("approvals", "list"))[1]
    status, out, err = await command("approvals", "grant", SANDBOX, "toolu_1", "--by", "ada", "-o", "json")
    assert (status, err) == (0, "")
    assert json.loads(out) | {"granted": True, "state": "acknowledged", "approval_id": "toolu_1"} == json.loads(out)
    assert [(answer.approval_id, answer.granted) for answer in agent.answers] == [("toolu_1", True)]
    await shown(client, 0)
    assert (await command("approvals", "list"))[1] == "none\n"
    await shown(client, 1, ApprovalState.GRANTED)
    listed = (await command("approvals", "list", "--all", "--sandbox", SANDBOX))[1]
    assert all(word in listed for word in ("granted", "ada"))


async def test_denial_reaches_the_agent_without_the_history(agent: Agent, command: Command) -> None:
    """With Postgres and event-ingest stopped, a denial is delivered with its reason."""
    await agent.ask("a1")
    status, out, err = await command("approvals", "deny", SANDBOX, "a1", "--reason", "not there", "--by", "ada")
    assert (status, out, err) == (0, f"a1 of {SANDBOX} is denied, delivered to the agent\n", "")
    assert [(answer.granted, answer.reason) for answer in agent.answers] == [(False, "not there")]


async def test_second_decision_is_refused_with_the_first(agent: Agent, command: Command) -> None:
    """A second decision ends with status 1 and one line that states the first; the agent receives nothing."""
    await agent.ask("a1")
    await command("approvals", "grant", SANDBOX, "a1", "--by", "ada")
    status, out, err = await command("approvals", "deny", SANDBOX, "a1")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert f"approval a1 of {SANDBOX} was granted by ada at " in err
    assert f"see `sandherd approvals list --all --sandbox {SANDBOX}`" in err
    assert len(agent.answers) == 1


async def test_refused_decision_has_an_exit_code_by_kind(agent: Agent, client: Herd, monkeypatch: Any) -> None:
    """The error is `not_found` for an unknown approval, `conflict` for an expired one, `refused` without a sandbox."""
    monkeypatch.setattr("message_relay.approval_handler.PATIENCE", timedelta(seconds=PATIENCE))
    await agent.ask("hasty", timeout_seconds=0.0)

    async def code_of(sandbox: str, approval: str) -> Code:
        with pytest.raises(HerdError) as caught:
            await client.grant(sandbox, approval, timeout=PATIENCE)
        return caught.value.problem.code

    assert await code_of(SANDBOX, "hasty") is Code.CONFLICT
    monkeypatch.setattr("message_relay.approval_handler.PATIENCE", timedelta(seconds=0.2))
    assert await code_of(SANDBOX, "a2") is Code.NOT_FOUND
    assert await code_of("sbx-none", "a2") is Code.REFUSED
    assert agent.answers == []


async def test_decision_refused_by_the_worker_fails(agent: Agent, command: Command) -> None:
    """If the worker's own time-out came first, the status is 1, with the worker's reason."""
    agent.refuses = "it was denied after 60 s"
    await agent.ask("a1")
    status, out, err = await command("approvals", "grant", SANDBOX, "a1")
    assert (status, out) == (1, "")
    assert err.startswith("sandherd: it was denied after 60 s; see ")


async def test_decision_for_a_disconnected_worker_stands(agent: Agent, client: Herd, command: Command) -> None:
    """The command states with status 1 that a decision waits; a worker that reconnects gets it."""
    await agent.ask("a1")
    await agent.leave()
    status, out, err = await command("approvals", "grant", SANDBOX, "a1", "--timeout", "1")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "is queued; no receipt within 1 s; it stays in the inbox" in err
    await agent.listen()
    with pytest.raises(HerdError) as caught:
        await client.deny(SANDBOX, "a1")
    assert "was granted" in str(caught.value)
    await agent.ask("a2")
    async with asyncio.timeout(PATIENCE):
        while not agent.answers:
            await asyncio.sleep(0.02)
    assert [answer.granted for answer in agent.answers] == [True]
