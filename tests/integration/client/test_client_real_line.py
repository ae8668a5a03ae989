"""The client against the real services: a task in a real sandbox, its history in a real Postgres."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from event_ingest.main import compose as compose_ingest
from message_relay.main import compose as compose_relay
from sandherd.client import Context, Herd, HerdError
from sandherd.client.connection import Connection
from sandherd.client.herd import task_spec
from sandherd.client.mending import Patience
from sandherd.contracts.states import MessageState, SandboxState, TaskState
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner

QUICK = Patience(look=0.5, retry=0.05)
CHATTY = """
import json, os
with os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w") as events:
    for n in range(200):
        text = f"line {n}"
        data = {"content": text, "content_length": len(text)}
        print(json.dumps({"type": "agent.message", "data": data}), file=events)
        print(text, flush=True)
open("result.txt", "w").write("done")
"""
LISTENING = "import sys\nprint('ready', flush=True)\nprint('heard: ' + sys.stdin.readline(), flush=True)\n"


@pytest.fixture
async def line(herd: Broker, postgres: str, tmp_path: Path) -> AsyncIterator[Context]:
    """Spawner, event-ingest and message-relay at work."""
    async with AsyncExitStack() as stack:
        for principal, compose in (
            (Principal.EVENT_INGEST, compose_ingest),
            (Principal.SPAWNER, compose_spawner),
            (Principal.MESSAGE_RELAY, compose_relay),
        ):
            settings = herd.settings(principal, database_url=postgres, home=tmp_path)
            await stack.enter_async_context(compose(settings).running())
        yield Context(
            nats_url=herd.url, credentials=herd.credentials(Principal.CLIENT), project="default", home=tmp_path
        )


@pytest.fixture
async def client(line: Context) -> AsyncIterator[Herd]:
    async with Herd.connect(line) as connected:
        yield connected


@pytest.fixture
def lossy(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """A live subscription that loses every other message, by a seed."""
    chance = random.Random(7)
    listen = Connection.listen

    async def losing(self: Connection, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> Any:
        async def heard(subject: str, document: bytes) -> None:
            if chance.random() < 0.5:
                await handle(subject, document)

        return await listen(self, subject, heard)

    monkeypatch.setattr(Connection, "listen", losing)
    return chance


async def test_nothing_is_lost_on_a_bad_line(client: Herd, lossy: random.Random) -> None:
    """With half of the live messages lost and the connection broken again and again, all that is kept was shown."""
    spec = task_spec("talk", ["python3", "agent.py"], files={"agent.py": CHATTY})
    shown = []
    async with client.follow(task="task-talk", fresh=True, patience=QUICK) as following:
        await client.submit(spec, task="task-talk")
        async for event in following:
            shown.append(event)
            if len(shown) % 60 == 0:
                await client.connection.bus.client.force_reconnect()
    sandbox = next(iter(following.sandboxes))
    kept = [stored async for stored in client.events(task="task-talk", source=f"/sandherd/sandbox/{sandbox}")]
    numbers = [event.sequence for event in shown if event.source == f"/sandherd/sandbox/{sandbox}"]
    assert following.whole
    assert numbers == list(range(1, len(numbers) + 1))
    assert {"line 0", "line 199"} <= {getattr(event.data, "content", None) for event in shown}
    said = [stored.envelope for stored in kept if stored.envelope["sequence"] <= len(numbers)]
    assert {envelope["id"] for envelope in said} <= {str(event.id) for event in shown}
    assert shown[-1].type == "task.completed"


async def test_a_finished_task_is_whole_in_every_answer(client: Herd) -> None:
    """Live state, history, trajectory, output and audit agree about a task that has run."""
    task = await client.submit(task_spec("talk", ["python3", "agent.py"], files={"agent.py": CHATTY}))
    ended = await client.wait(task)
    assert ended.state is TaskState.COMPLETED
    assert ended.sandbox is not None
    following = client.follow(sandbox=ended.sandbox, patience=QUICK)
    told = [event async for event in following]
    assert told[-1].type == "sandbox.terminated"
    assert following.whole
    assert (await client.sandbox(ended.sandbox)).state is SandboxState.TERMINATED
    pages = [page async for page in client.trajectory(ended.sandbox, limit=50)]
    assert len(pages) > 1
    assert pages[-1].trajectory_events == sum(len(page.events) for page in pages)
    text = "".join([chunk.text async for chunk in client.output(ended.sandbox, follow=True)])
    assert text.splitlines()[:200] == [f"line {n}" for n in range(200)]
    audit = await client.audit(ended.sandbox)
    assert (audit.missing, audit.sources[0].closed) == (0, True)
    assert (await client.tasks(past=True)).items[0].task == task


async def test_a_message_reaches_the_agent(client: Herd) -> None:
    """A message is delivered to the running program, and its receipt says how long that took."""
    async with client.follow(task="task-listen", fresh=True, patience=QUICK) as following:
        spec = task_spec("listen", ["python3", "agent.py"], files={"agent.py": LISTENING})
        await client.submit(spec, task="task-listen")
        async for event in following:
            if event.type == "agent.turn_started":
                break
        sandbox = next(iter(following.sandboxes))
        delivery = await client.deliver(sandbox, "good morning")
        rest = [event async for event in following]
    assert delivery.state is MessageState.ACKNOWLEDGED
    assert delivery.delivery_ms is not None
    assert rest[-1].type == "task.completed"
    assert "agent.message_injected" in {event.type for event in rest}
    text = "".join([chunk.text async for chunk in client.output(sandbox)])
    assert "heard: good morning" in text


async def test_what_is_not_taken_ends_with_the_reason(client: Herd) -> None:
    """An unknown runtime and a name that is taken end the following; who had the name goes on."""
    lasting = task_spec("sleep", ["sleep", "600"])
    await client.submit(lasting, task="task-taken")
    for task, spec, reason in (
        ("task-moon", task_spec("x", ["true"], runtime="moon"), "no runtime 'moon'"),
        ("task-taken", task_spec("x", ["true"]), "another task task-taken"),
    ):
        async with client.follow(task=task, fresh=True, patience=QUICK) as following:
            await client.submit(spec, task=task)
            events = [event async for event in following]
        assert events[-1].type == "task.rejected"
        assert reason in events[-1].data.reason
    with pytest.raises(HerdError, match="no runtime 'moon'"):
        await client.wait("task-moon")
    await client.cancel("task-taken")
    assert (await client.wait("task-taken")).state is TaskState.CANCELLED


async def test_a_cancelled_task_ends_as_that(client: Herd) -> None:
    """`cancel` ends a running task, and following ends with it."""
    async with client.follow(task="task-long", fresh=True, patience=QUICK) as following:
        await client.submit(task_spec("sleep", ["sleep", "600"]), task="task-long")
        last = None
        async for event in following:
            last = event
            if event.type == "task.running":
                await client.cancel("task-long", reason="enough")
    assert last is not None
    assert last.type == "task.cancelled"
    assert (await client.wait("task-long")).state is TaskState.CANCELLED
