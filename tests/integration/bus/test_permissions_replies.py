"""A reply reaches only the requester, for any reply subject of a message.

The broker does not check reply subjects: JetStream's acknowledgement, or a service's reply, would be written to any of
them with the permissions of the replying service. That is why sandboxes and users have their own accounts.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sandherd.bus.auth.accounts import Account, account_of
from sandherd.bus.connection import Bus
from sandherd.bus.republished import is_republished
from sandherd.contracts.headers import SEQUENCE_HEADER
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.requests import REQUESTS, TaskList
from sandherd.contracts.streams import BUCKETS, STREAMS
from sandherd.contracts.subjects import BY_NAME, DELIVER, Principal
from sandherd.service.service import IncomingRequest, Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

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
FOLLOWED = ("sandherd.v1.event.other.>", "sandherd.v1.output.other.*")
NAMES = {"project": "p1", "sandbox": "sbx-1", "action": "message", "artifact": "art-1"}
WORKER_REQUESTS = [row for row in BY_NAME.values() if row.name.startswith("request.worker.")]


async def counts(herd: Broker) -> dict[str, int]:
    """The number of messages in each stream."""
    names = [*(stream.name for stream in STREAMS), *(bucket.stream for bucket in BUCKETS)]
    async with herd.provisioner() as jetstream:
        return {name: int((await jetstream.stream_info(name)).state.messages) for name in names}


async def settled(bus: Bus) -> None:
    """Do two round trips, after which the broker has handled all that was published before."""
    await bus.client.flush()
    await bus.client.flush()


def published_by(principal: Principal) -> list[str]:
    """Each subject to which a principal may publish, with its own names."""
    return [row.pattern(NAMES) for row in BY_NAME.values() if principal in row.producers]


async def publish_everything(bus: Bus, principal: Principal) -> None:
    """Publish to each subject with each reply subject."""
    for number, subject in enumerate(published_by(principal)):
        for reply in OTHERS:
            headers = {"Nats-Msg-Id": f"{number}-{reply}", SEQUENCE_HEADER: "1"}
            await bus.client.publish(subject, b"{}", reply=reply, headers=headers)
    await settled(bus)


def expected_after(before: dict[str, int], principal: Principal) -> dict[str, int]:
    """The content of each stream, if it has only messages that were published to it."""
    expected = dict(before)
    for row in BY_NAME.values():
        if principal in row.producers and row.stream:
            expected[row.stream] += len(OTHERS)
    return expected


async def reaches(herd: Broker, expected: dict[str, int]) -> None:
    """Wait until every stream has at least this content."""
    async with asyncio.timeout(PATIENCE):
        while True:
            now = await counts(herd)
            if all(now[name] >= expected[name] for name in expected):
                return


class Others:
    """A worker and a client of another project, and what is delivered to them."""

    def __init__(self) -> None:
        self.worker: list[Msg] = []
        self.client: list[Msg] = []

    async def on_request(self, msg: Msg) -> None:
        self.worker.append(msg)

    async def on_event(self, msg: Msg) -> None:
        self.client.append(msg)

    async def await_replies(self, principal: Principal) -> None:
        """Wait until some replies were delivered, if the account permits that."""
        if account_of(principal) is Account.SANDBOXES:
            await eventually(lambda: self.worker, "a reply at a worker")
        if principal is Principal.CLIENT:
            await eventually(lambda: any(b'"ok"' in msg.data for msg in self.client), "a service's reply at a client")

    def check(self) -> None:
        """Check that each lacks what a message has, and is no request, message or event."""
        assert not [msg for msg in self.worker if msg.reply]
        assert not [msg for msg in self.client for pattern in FOLLOWED if is_republished(msg, pattern)]
        models: list[type[BaseModel]] = [InboxMessage]
        models += (REQUESTS[row.name.removeprefix("request.")] for row in WORKER_REQUESTS)
        for msg, model in itertools.product(self.worker, models):
            with pytest.raises(ValidationError):
                model.model_validate_json(msg.data)


@asynccontextmanager
async def others(herd: Broker) -> AsyncIterator[Others]:
    """Both are subscribed to all that their credentials permit."""
    found = Others()
    async with (
        herd.bus(Principal.WORKER, project="other", sandbox="sbx-2") as worker,
        herd.bus(Principal.CLIENT, project="other") as client,
    ):
        for subject in (row.fill(project="other", sandbox="sbx-2") for row in (DELIVER, *WORKER_REQUESTS)):
            await worker.client.subscribe(subject, cb=found.on_request)
        await worker.client.subscribe("_INBOX_sbx-2.>", cb=found.on_request)
        for pattern in FOLLOWED:
            await client.client.subscribe(pattern, cb=found.on_event)
        await settled(worker)
        await settled(client)
        yield found


def spawner(herd: Broker) -> Service:
    """A service that replies to every request to the spawner."""

    async def answer(_request: IncomingRequest[Any]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    for request in (request for request in REQUESTS.values() if request.answered_by == Principal.SPAWNER):
        service.answer(request, answer)
    return service


@pytest.mark.parametrize(
    "principal", [who for who in Principal if account_of(who) in {Account.SANDBOXES, Account.PEOPLE}]
)
async def test_reply_subject_reaches_no_other_stream(herd: Broker, principal: Principal) -> None:
    """Whatever the reply subject is, only the stream published to receives the message.

    A message to a neighbour in the account is recognisable as a reply, also if the request has the headers of a stored
    message.
    """
    async with (
        spawner(herd).running(),
        herd.bus(principal, project="p1", sandbox="sbx-1") as bus,
        others(herd) as neighbours,
    ):
        before = await counts(herd)
        await publish_everything(bus, principal)
        expected = expected_after(before, principal)
        await reaches(herd, expected)
        await settled(bus)  # an acknowledgement to a wrong subject would be stored by now
        assert await counts(herd) == expected
        await neighbours.await_replies(principal)
        neighbours.check()


async def test_client_receives_stored_events_once(herd: Broker) -> None:
    """An event of a sandbox reaches a client of its project under its subject, once however often it is published."""
    received: list[str] = []

    async def on_message(msg: Msg) -> None:
        received.append(msg.data.decode())

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
            while "3" not in received:
                await asyncio.sleep(0.01)
    assert received == ["1", "2", "3"]


@pytest.mark.parametrize("principal", [Principal.WORKER, Principal.JOINER, Principal.CLIENT, Principal.SUBSCRIBER])
async def test_message_trace_reaches_no_other_project(herd: Broker, principal: Principal) -> None:
    """The broker sends a trace to the subject in a header only if the publisher may publish to it."""
    (subject, *_) = published_by(principal)
    refused = [f"sandherd.v1.{name}.other.sbx-2" for name in ("deliver", "output", "request.worker.exec")]
    refused.append("sandherd.v1.event.other.sbx-2.agent.completed")
    async with herd.bus(principal, project="p1", sandbox="sbx-1") as bus:
        for target in refused:
            await bus.client.publish(subject, b"{}", headers={"Nats-Trace-Dest": target})
        await settled(bus)
        await eventually(lambda: bus.violations == len(refused), "a refusal of each")
