"""Other services request changes of streams from the spawner, which makes only checked ones."""

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from sandherd.bus.connection import Bus, RefusedError
from sandherd.bus.stream_configs import stream_config
from sandherd.bus.subscription_consumers import MAX_WAITING
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import CreateConsumer, DeleteConsumer, DeleteDead, PurgeArtifacts, PurgeEvents
from sandherd.contracts.streams import BY_STREAM, CONSUMERS
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.service.stream_usage import read_fill
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE

MIB = 1024 * 1024


@pytest.fixture
async def asker(herd: Broker) -> AsyncIterator[Bus]:
    """The connection of event-ingest, with the part of the spawner that replies to it."""
    async with stream_admin(herd), herd.bus(Principal.EVENT_INGEST) as bus:
        yield bus


async def fill(herd: Broker, stream: str, subject: str, chunks: int, *, kilobytes: int) -> None:
    """Make a stream small, and publish messages into it."""
    async with herd.provisioner() as jetstream:
        await jetstream.update_stream(stream_config(replace(BY_STREAM[stream], max_bytes=MIB)))
    async with herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as worker:
        for number in range(chunks):
            await worker.publish(subject, b"x" * kilobytes * 1024, msg_id=str(number))


async def refusal(asker: Bus, request: Any, project: str = "fleet") -> Code:
    with pytest.raises(RefusedError) as caught:
        await asker.ask(request, project)
    return caught.value.problem.code


def creation(**changed: Any) -> CreateConsumer:
    options: dict[str, Any] = {
        "place": 1,
        "name": "alerts",
        "types": [],
        "ack_wait_seconds": 30.0,
        "idle_seconds": 3600.0,
    }
    return CreateConsumer(**(options | changed))


async def test_unacknowledged_events_are_not_purged(herd: Broker, asker: Bus) -> None:
    """Events that are not acknowledged are not removed, however full the stream is."""
    await fill(herd, "EVENTS", "sandherd.v1.event.p1.sbx-1.agent.message", 9, kilobytes=100)
    before = await read_fill(asker, "EVENTS")
    for below in (2, 5, before.last, before.last + 1, 2**53 - 1):
        assert await refusal(asker, PurgeEvents(below=below)) is Code.REFUSED
    assert await read_fill(asker, "EVENTS") == before


async def test_half_empty_stream_is_not_purged(herd: Broker, asker: Bus) -> None:
    """The credential of event-ingest can't be used to empty a stream."""
    await fill(herd, "ARTIFACTS", "sandherd.v1.artifact.p1.sbx-1.art-1", 3, kilobytes=100)
    assert await refusal(asker, PurgeArtifacts(sandbox="sbx-1", keep=512), "p1") is Code.REFUSED
    assert await refusal(asker, PurgeArtifacts(sandbox="sbx-1", keep=1), "p1") is Code.REFUSED
    assert await refusal(asker, PurgeEvents(below=1)) is Code.REFUSED
    assert (await read_fill(asker, "ARTIFACTS")).messages == 3


async def test_consumer_is_of_one_project_without_deliver_subject(herd: Broker, asker: Bus) -> None:
    """The consumer filters its project's subjects and has no deliver subject; its position is never changed."""
    assert (await asker.ask(creation(types=["agent", "task.completed"]), "p1")).created
    assert not (await asker.ask(creation(name="other"), "p1")).created
    async with herd.provisioner() as jetstream:
        config = (await jetstream.consumer_info("EVENTS", "sub-p1-1")).config
    assert config.deliver_subject is None
    assert sorted(config.filter_subjects or []) == [
        "sandherd.v1.event.p1.*.agent.*",
        "sandherd.v1.event.p1.*.task.completed",
    ]
    assert (await asker.ask(DeleteConsumer(place=1), "p1")).deleted
    assert not (await asker.ask(DeleteConsumer(place=1), "p1")).deleted


async def test_update_of_another_subscriptions_place_is_refused(herd: Broker, asker: Bus) -> None:
    """A subscription that has replaced a deleted one keeps its name, filters and position."""
    await asker.ask(creation(name="present"), "p1")
    async with herd.provisioner() as jetstream:
        before = (await jetstream.consumer_info("EVENTS", "sub-p1-1")).config
        assert await refusal(asker, creation(name="deleted", update=True), "p1") is Code.NOT_FOUND
        assert (await jetstream.consumer_info("EVENTS", "sub-p1-1")).config == before


async def test_no_request_creates_or_deletes_a_services_consumer(herd: Broker, asker: Bus) -> None:
    """Places beyond a project's, all projects at once, and unknown fields are refused."""
    assert await refusal(asker, creation(place=17), "p1") is Code.INVALID_FIELD
    assert await refusal(asker, creation(), "fleet") is Code.INVALID_FIELD
    assert await refusal(asker, DeleteConsumer(place=99), "p1") is Code.INVALID_FIELD
    forged = creation().model_dump_json()[:-1].encode() + b',"deliver_subject":"_INBOX_event-ingest.x"}'
    answer = await asker.request(request_subject("spawner.create_consumer", "p1"), forged)
    assert b"deliver_subject" in answer
    assert b'"error"' in answer
    async with herd.provisioner() as jetstream:
        found = {info.name for info in await jetstream.consumers_info("EVENTS")}
    assert found == {row.name for row in CONSUMERS if row.stream == "EVENTS"}


@pytest.mark.parametrize(
    "terms",
    [
        {"ack_wait_seconds": 1e-9},
        {"ack_wait_seconds": 0.0},
        {"ack_wait_seconds": 1e300},
        {"idle_seconds": 1e-9},
        {"idle_seconds": 0.0},
        {"idle_seconds": 1e12},
    ],
)
async def test_excessive_consumer_terms_are_refused(herd: Broker, asker: Bus, terms: Any) -> None:
    """The error names the field that is out of range; no consumer is created."""
    with pytest.raises(RefusedError) as caught:
        await asker.ask(creation(**terms), "p1")
    assert (caught.value.problem.code, caught.value.problem.field) == (Code.INVALID_FIELD, next(iter(terms)))
    async with herd.provisioner() as jetstream:
        assert {info.name for info in await jetstream.consumers_info("EVENTS")} <= {row.name for row in CONSUMERS}


AMPLIFYING: dict[str, Any] = {
    "idle_heartbeat": 1, "flow_control": True, "backoff": [1], "rate_limit_bps": 1, "max_waiting": 100_000,
    "max_expires": 1, "max_batch": 1, "max_deliver": 1, "max_ack_pending": -1, "headers_only": True,
    "deliver_group": "x", "priority_groups": ["x"], "num_replicas": 5, "mem_storage": True, "sample_freq": "100%",
    "deliver_policy": "all", "filter_subject": ">", "config": {}, "action": "update",
}  # fmt: skip


async def test_consumer_request_with_unknown_field_is_refused(asker: Bus) -> None:
    """Only the spawner sets heartbeats, backoff, rates and other settings: an additional field is refused."""
    for field, value in AMPLIFYING.items():
        body = json.dumps(creation().model_dump(mode="json") | {field: value}).encode()
        answer = json.loads(await asker.request(request_subject("spawner.create_consumer", "p1"), body))
        assert (answer["error"]["code"], answer["error"]["field"]) == ("invalid_field", field)


async def test_a_subscriber_has_a_bounded_number_of_pull_requests(herd: Broker, asker: Bus) -> None:
    """The broker sends a heartbeat for each waiting pull request; requests beyond the limit do not wait."""
    assert (await asker.ask(creation(), "p1")).created
    pull = json.dumps({"batch": 1, "expires": 600_000_000_000, "idle_heartbeat": 300_000_000_000}).encode()
    async with herd.bus(Principal.SUBSCRIBER, project="p1") as bus, herd.provisioner() as jetstream:
        inbox = bus.client.new_inbox()
        await bus.client.subscribe(inbox)
        for _ in range(5 * MAX_WAITING):
            await bus.client.publish("$JS.herd.API.CONSUMER.MSG.NEXT.EVENTS.sub-p1-1", pull, reply=inbox)
        await bus.flush()
        waiting: list[int] = []
        async with asyncio.timeout(PATIENCE):
            while waiting[-2:] != [MAX_WAITING] * 2:  # all were received; the broker counts them a moment later
                waiting.append((await jetstream.consumer_info("EVENTS", "sub-p1-1")).num_waiting or 0)
    assert max(waiting) == MAX_WAITING


async def test_dead_letter_is_deleted_once(herd: Broker, asker: Bus) -> None:
    """The deletion of a missing letter reports that it is missing."""
    ack = await asker.publish("sandherd.v1.dead.event-ingest.internal", b"x", msg_id="x")
    assert (await asker.ask(DeleteDead(number=ack.seq), "fleet")).deleted
    assert not (await asker.ask(DeleteDead(number=ack.seq), "fleet")).deleted
