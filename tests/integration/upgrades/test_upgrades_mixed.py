"""One version back: workers and services of the last release and of today run whole tasks in every mixture."""

import json
from collections.abc import Sequence
from pathlib import Path

import sandherd.contracts
from sandherd.client import Herd
from sandherd.client.events.gap_filler import FollowLimits
from sandherd.client.herd import task_spec
from sandherd.contracts.states import MessageState, TaskState
from sandherd.contracts.subjects import Principal, event_subject
from tests.integration.upgrades.conftest import NEW, Site
from tests.stored_history import all_stored

QUICK = FollowLimits(check=0.5, retry=0.05)
AGENT = """
import json, os, sys
with os.fdopen(int(os.environ["SANDHERD_EVENTS_FD"]), "w") as events:
    print(json.dumps({"type": "agent.message", "data": {"content": "hello", "content_length": 5}}), file=events)
for line in sys.stdin:
    print("heard: " + line, flush=True)
    if line.startswith("good night"):
        break
"""
PUBLISHED = {"agent.started", "agent.message", "agent.message_injected", "agent.completed", "agent.shutdown"}
NEWER = Path(sandherd.contracts.__file__).parent / "golden/v1/events/agent.server_ready.json"


async def begin(herd: Herd, task: str) -> str:
    """Start an agent that listens; returns its sandbox."""
    async with herd.follow(task=task, fresh=True, limits=QUICK) as following:
        await herd.submit(task_spec("listen", ["python3", "agent.py"], files={"agent.py": AGENT}), task=task)
        async for event in following:
            assert event.type not in {"task.failed", "task.rejected"}, event.data
            if event.type == "agent.turn_started":
                break
    return next(iter(following.sandboxes))


async def send_message(herd: Herd, sandbox: str, text: str) -> None:
    """Send a message that reaches the agent."""
    assert (await herd.deliver(sandbox, text)).state is MessageState.ACKNOWLEDGED


async def look_inside(herd: Herd, sandbox: str) -> None:
    """Run a command in the sandbox, through its worker."""
    command = await herd.exec(sandbox, ["cat", "agent.py"])
    assert b"".join([piece.data async for piece in command.output()]).decode() == AGENT


async def settled(herd: Herd, task: str, sandbox: str, received: Sequence[str]) -> None:
    """Check that the task is done, and that its events are stored once and in order."""
    assert (await herd.wait(task)).state is TaskState.COMPLETED
    following = herd.follow(sandbox=sandbox, limits=QUICK)
    followed = [event async for event in following]
    assert (followed[-1].type, following.is_complete) == ("sandbox.terminated", True)
    await all_stored(herd)
    stored = [event.envelope async for event in herd.events(task=task, source=f"/sandherd/sandbox/{sandbox}")]
    assert [event["sequence"] for event in stored] == list(range(1, len(stored) + 1))
    assert {event["type"] for event in stored} >= PUBLISHED
    audit = await herd.audit(sandbox)
    assert (audit.missing, audit.sources[0].closed) == (0, True)
    text = "".join([chunk.text async for chunk in herd.output(sandbox, follow=True)])
    assert [line.removeprefix("heard: ") for line in text.splitlines() if line.startswith("heard: ")] == list(received)
    assert task in {view.task for view in (await herd.tasks(past=True)).items}


async def whole_task(herd: Herd, task: str) -> None:
    """Run a task from submission to history, with a command and a message."""
    sandbox = await begin(herd, task)
    await look_inside(herd, sandbox)
    await send_message(herd, sandbox, "good night")
    await settled(herd, task, sandbox, ["good night"])


async def publish_newer_event(site: Site) -> str:
    """Publish as a worker an event of a type that the last release lacks; returns its id."""
    newer_event = json.loads(NEWER.read_text()) | {"project": "default"}
    newer_event.pop("taskid")
    subject = event_subject(newer_event["project"], newer_event["subject"], newer_event["type"])
    async with site.broker.bus(Principal.WORKER, sandbox=newer_event["subject"]) as bus:
        await bus.publish(subject, json.dumps(newer_event).encode(), msg_id=newer_event["id"])
    return str(newer_event["id"])


async def test_workers_and_services_of_either_version_work_together(
    site: Site, client: Herd, old: Path, new: Path
) -> None:
    """While services are upgraded and rolled back, each task completes, and is whole in the history.

    It is one test, as the start of all services costs more than the tasks. Events of a newer worker that older services
    don't know are dead letters, and are stored after an upgrade: nothing is lost.
    """
    async with site.services(old, worker=new):
        await whole_task(client, "task-new-worker")
        newer = await publish_newer_event(site)
        letter = await site.dead()
        assert (letter.service, letter.reason.code) == ("event-ingest", "unknown_type")
        first = await begin(client, "task-first")
        await send_message(client, first, "good morning")
    async with site.services(NEW, worker=old):
        await look_inside(client, first)
        await send_message(client, first, "good night")
        await settled(client, "task-first", first, ["good morning", "good night"])
        await whole_task(client, "task-old-worker")
        async with site.operator() as operator:
            assert (await operator.requeue(letter.number)).outcome == "done"
        assert [event.envelope["id"] async for event in client.events(types=["agent.server_ready"])] == [newer]
        second = await begin(client, "task-second")
    async with site.services(old, worker=old):
        await look_inside(client, second)
        await send_message(client, second, "good night")
        await settled(client, "task-second", second, ["good night"])
