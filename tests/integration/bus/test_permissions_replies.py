"""A reply goes back to the asker and nowhere else, whatever reply subject is put on what is said.

The broker does not check reply subjects: JetStream's acknowledgement, or a service's answer, would be written to any of
them with the rights of whoever answers. That is why sandboxes and people have accounts of their own.
"""

import asyncio
from typing import Any

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sandherd.bus.accounts import Account, account_of
from sandherd.bus.connection import Bus
from sandherd.bus.service import Asked, Service
from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.requests import REQUESTS, TaskList
from sandherd.contracts.streams import BUCKETS, STREAMS
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

OTHERS = (
    "$KV.leases.spawner.scheduler",
    "$KV.tasks.other.task-1",
    "$KV.sandboxes.other.sbx-2",
    "$KV.revocations.list",
    "$KV.monitor.manifest",
    "$JS.API.STREAM.PURGE.EVENTS",
    "sandherd.v1.command.spawner.cancel_task.other",
    "sandherd.v1.inbox.other.sbx-2",
    "sandherd.v1.output.other.sbx-2",
    "sandherd.v1.artifact.other.sbx-2.art-1",
    "sandherd.v1.event.other.sbx-2.agent.completed",
    "sandherd.v1.event.other.task-1.task.completed",
    "sandherd.v1.dead.spawner.internal",
    "sandherd.v1.deliver.other.sbx-2",
    "sandherd.v1.request.worker.exec.other.sbx-2",
    "sandherd.v1.request.worker.upload.other.sbx-2",
    "$KV.pool.wrm-1",
    "_INBOX_spawner.x",
    "_INBOX_sbx-2.x",
)
NAMES = {"project": "p1", "sandbox": "sbx-1", "action": "message", "artifact": "art-1"}
ASKED_OF_WORKERS = [row for row in BY_NAME.values() if row.name.startswith("request.worker.")]


async def counts(herd: Broker) -> dict[str, int]:
    """How many messages each stream holds."""
    names = [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
    async with herd.provisioner() as jetstream:
        return {name: int((await jetstream.stream_info(name)).state.messages) for name in names}


async def settled(bus: Bus) -> None:
    """Two round trips: all that was published before has been handled by the broker."""
    await bus.client.flush()
    await bus.client.flush()


def said_by(principal: Principal) -> list[str]:
    """Each subject that a principal may say, with its own names."""
    return [row.pattern(NAMES) for row in BY_NAME.values() if principal in row.producers]


async def say_everything(bus: Bus, principal: Principal) -> None:
    """Say each subject with each reply subject."""
    for number, subject in enumerate(said_by(principal)):
        for reply in OTHERS:
            await bus.client.publish(subject, b"{}", reply=reply, headers={"Nats-Msg-Id": f"{number}-{reply}"})
    await settled(bus)


def expected_after(before: dict[str, int], principal: Principal) -> dict[str, int]:
    """What each stream then holds, if only what was said to it is in it."""
    expected = dict(before)
    for row in BY_NAME.values():
        if principal in row.producers and row.stream:
            expected[row.stream] += len(OTHERS)
    return expected


async def reaches(herd: Broker, expected: dict[str, int]) -> None:
    """Wait until every stream holds at least as much."""
    async with asyncio.timeout(PATIENCE):
        while True:
            now = await counts(herd)
            if all(now[name] >= expected[name] for name in expected):
                return


@pytest.mark.parametrize(
    "principal", [who for who in Principal if account_of(who) in {Account.SANDBOXES, Account.PEOPLE}]
)
async def test_a_reply_subject_reaches_nobody_else(herd: Broker, principal: Principal) -> None:
    """Whatever is said with whatever reply subject, only the stream that it was said to has it."""

    async def answer(_asked: Asked[Any]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    for request in (request for request in REQUESTS.values() if request.answered_by == Principal.SPAWNER):
        service.answer(request, answer)
    heard: list[bytes] = []

    async def on_message(msg: Msg) -> None:
        heard.append(msg.data)

    async with (
        service.running(),
        herd.bus(principal, project="p1", sandbox="sbx-1") as bus,
        herd.bus(Principal.WORKER, project="other", sandbox="sbx-2") as victim,
    ):
        await victim.client.subscribe("sandherd.v1.deliver.other.sbx-2", cb=on_message)
        for row in ASKED_OF_WORKERS:
            await victim.client.subscribe(row.fill(project="other", sandbox="sbx-2"), cb=on_message)
        await victim.client.subscribe("_INBOX_sbx-2.>", cb=on_message)
        await settled(victim)
        before = await counts(herd)
        await say_everything(bus, principal)
        expected = expected_after(before, principal)
        await reaches(herd, expected)
        await settled(bus)  # an acknowledgement that went astray would be stored by now
        assert await counts(herd) == expected
        await settled(victim)
        # In the account of sandboxes an acknowledgement may be sent to a neighbour, but it says nothing to it.
        models: list[type[BaseModel]] = [InboxMessage]
        models += (REQUESTS[row.name.removeprefix("request.")] for row in ASKED_OF_WORKERS)
        for document in heard:
            for model in models:
                with pytest.raises(ValidationError):
                    model.model_validate_json(document)


async def test_people_hear_what_is_kept_and_hear_it_once(herd: Broker) -> None:
    """What a sandbox says reaches a client of its project under the same subject, once however often it is said."""
    heard: list[str] = []

    async def on_message(msg: Msg) -> None:
        heard.append(msg.data.decode())

    async with (
        herd.bus(Principal.CLIENT, project="p1") as client,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker,
        herd.bus(Principal.WORKER, project="p2", sandbox="sbx-2") as stranger,
    ):
        await client.client.subscribe("sandherd.v1.event.p1.>", cb=on_message)
        await settled(client)
        await stranger.publish("sandherd.v1.event.p2.sbx-2.agent.message", b"not for p1", msg_id="x")
        for number in (1, 1, 2, 2, 3):
            await worker.publish("sandherd.v1.event.p1.sbx-1.agent.message", b"%d" % number, msg_id=str(number))
        async with asyncio.timeout(PATIENCE):
            while "3" not in heard:
                await asyncio.sleep(0.01)
    assert heard == ["1", "2", "3"]
