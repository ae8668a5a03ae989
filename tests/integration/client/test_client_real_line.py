"""The client with the real services: a task in a real sandbox, its history in a real Postgres."""

import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandherd.client import Herd, HerdError
from sandherd.client.connection import Connection
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.client.herd import task_spec
from sandherd.client.tasks.resubmission import Resubmission
from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.errors import Code
from sandherd.contracts.states import MessageState, SandboxState, TaskState
from tests.stored_history import all_stored

QUICK = FollowLimits(check=0.5, retry=0.05)
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
def lossy(monkeypatch: pytest.MonkeyPatch) -> random.Random:
    """Make a live subscription lose every other message, at random by a seed."""
    chance = random.Random(7)
    listen = Connection.listen

    async def losing(self: Connection, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> Any:
        async def on_event(subject: str, document: bytes) -> None:
            if chance.random() < 0.5:
                await handle(subject, document)

        return await listen(self, subject, on_event)

    monkeypatch.setattr(Connection, "listen", losing)
    return chance


async def test_unreliable_connection_loses_no_shown_event(real: Herd, lossy: random.Random) -> None:
    """With half of the live messages lost and repeated disconnections, all stored events are shown."""
    spec = task_spec("talk", ["python3", "agent.py"], files={"agent.py": CHATTY})
    shown = []
    async with real.follow(task="task-talk", fresh=True, limits=QUICK) as following:
        await real.submit(spec, task="task-talk")
        async for event in following:
            shown.append(event)
            if len(shown) % 60 == 0:
                await real.connection.bus.client.force_reconnect()
    sandbox = next(iter(following.sandboxes))
    retained = [stored async for stored in real.events(task="task-talk", source=f"/sandherd/sandbox/{sandbox}")]
    numbers = [event.sequence for event in shown if event.source == f"/sandherd/sandbox/{sandbox}"]
    assert following.is_complete
    assert numbers == list(range(1, len(numbers) + 1))
    assert {"line 0", "line 199"} <= {getattr(event.data, "content", None) for event in shown}
    earlier = [stored.envelope for stored in retained if stored.envelope["sequence"] <= len(numbers)]
    assert {envelope["id"] for envelope in earlier} <= {str(event.id) for event in shown}
    assert shown[-1].type == "task.completed"


async def test_finished_task_is_complete_in_every_view(real: Herd) -> None:
    """Live state, history, trajectory, output and audit agree."""
    task = await real.submit(task_spec("talk", ["python3", "agent.py"], files={"agent.py": CHATTY}))
    ended = await real.wait(task)
    assert ended.state is TaskState.COMPLETED
    assert ended.sandbox is not None
    following = real.follow(sandbox=ended.sandbox, limits=QUICK)
    received = [event async for event in following]
    assert received[-1].type == "sandbox.terminated"
    assert following.is_complete
    assert (await real.sandbox(ended.sandbox)).state is SandboxState.TERMINATED
    await all_stored(real)
    pages = [page async for page in real.trajectory(ended.sandbox, limit=50)]
    assert len(pages) > 1
    assert pages[-1].trajectory_events == sum(len(page.events) for page in pages)
    text = "".join([chunk.text async for chunk in real.output(ended.sandbox, follow=True)])
    assert text.splitlines()[:200] == [f"line {n}" for n in range(200)]
    audit = await real.audit(ended.sandbox)
    assert (audit.missing, audit.sources[0].closed) == (0, True)
    assert (await real.tasks(past=True)).items[0].task == task


async def test_message_reaches_the_agent(real: Herd) -> None:
    """A message is delivered to the running program, and its receipt has the duration."""
    async with real.follow(task="task-listen", fresh=True, limits=QUICK) as following:
        spec = task_spec("listen", ["python3", "agent.py"], files={"agent.py": LISTENING})
        await real.submit(spec, task="task-listen")
        async for event in following:
            if event.type == "agent.turn_started":
                break
        sandbox = next(iter(following.sandboxes))
        delivery = await real.deliver(sandbox, "good morning")
        rest = [event async for event in following]
    assert delivery.state is MessageState.ACKNOWLEDGED
    assert delivery.delivery_ms is not None
    assert rest[-1].type == "task.completed"
    assert "agent.message_injected" in {event.type for event in rest}
    text = "".join([chunk.text async for chunk in real.output(sandbox, follow=True)])
    assert "heard: good morning" in text


async def test_refused_submission_ends_the_following_with_its_reason(real: Herd) -> None:
    """An unknown runtime and a used name are refused; the task with that name continues."""
    lasting = task_spec("sleep", ["sleep", "600"])
    await real.submit(lasting, task="task-taken")
    for task, spec, reason, refusal in (
        ("task-moon", task_spec("x", ["true"], runtime="moon"), "no runtime 'moon'", "task.rejected"),
        ("task-taken", task_spec("x", ["true"]), "another task task-taken", "task.refused"),
    ):
        async with real.follow(task=task, fresh=True, limits=QUICK) as following:
            # Not by `submit`, which would refuse an unknown runtime itself.
            await real.connection.command(SubmitTask(task=task, spec=spec), task)
            events = [event async for event in following]
        assert events[-1].type == refusal
        assert reason in events[-1].data.reason
    await all_stored(real)  # only the history knows a task that was rejected
    with pytest.raises(HerdError, match="no runtime 'moon'"):
        await real.wait("task-moon")
    await real.cancel("task-taken")
    assert (await real.wait("task-taken")).state is TaskState.CANCELLED


async def test_task_under_a_name_in_use_is_the_same_or_another(real: Herd) -> None:
    """The same specification is accepted, without a second task; another one is refused; also after the task's end."""
    for ended in (False, True):
        await check_name_in_use(real, ended=ended)


async def check_name_in_use(real: Herd, *, ended: bool) -> None:
    """Check this for one task."""
    name = f"task-again-{ended}".lower()
    spec = task_spec("sleep", ["sleep", "0" if ended else "600"])
    await real.submit(spec, task=name)
    if ended:
        await real.wait(name)
    async with Resubmission(real.connection, name) as again:
        await real.submit(spec, task=name)
        await again.check_same("choose another")
    async with Resubmission(real.connection, name) as again:
        await real.submit(task_spec("other", ["sleep", "0"]), task=name)
        with pytest.raises(HerdError, match=f"another task {name}") as raised:
            await again.check_same("choose another")
    assert raised.value.problem.code is Code.CONFLICT
    assert (await real.task(name)).attempt == 1
    if not ended:
        await real.cancel(name)


async def test_cancelled_task_ends_as_cancelled(real: Herd) -> None:
    """`cancel` ends a running task, and the following ends with it."""
    async with real.follow(task="task-long", fresh=True, limits=QUICK) as following:
        await real.submit(task_spec("sleep", ["sleep", "600"]), task="task-long")
        last = None
        async for event in following:
            last = event
            if event.type == "task.running":
                await real.cancel("task-long", reason="enough")
    assert last is not None
    assert last.type == "task.cancelled"
    assert (await real.wait("task-long")).state is TaskState.CANCELLED
