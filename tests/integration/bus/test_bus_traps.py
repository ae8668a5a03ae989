"""Measured faults of nats-py and FastStream that affect Sandherd: these tests fail if one takes effect."""

import asyncio
import gc
import socket
from collections import Counter
from contextlib import suppress
from pathlib import Path

import nats.js.errors
import pytest
from aiohttp import ClientSession
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig
from pydantic import BaseModel

from sandherd.backoff import Backoff
from sandherd.bus import publish_retries
from sandherd.bus.connection import (
    Bus,
    BusError,
    ConnectionIdentity,
    PublishFailedError,
    PublishRefusedError,
    RefusedError,
)
from sandherd.bus.consumers import pull
from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry, consume, consume_batches
from sandherd.bus.health import Health
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import ListLiveSandboxes, ListLiveTasks, TaskList
from sandherd.contracts.streams import BY_CONSUMER, STREAMS
from sandherd.contracts.subjects import Principal
from sandherd.service.service import IncomingRequest, Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

CONSUMER = "spawner-commands"
SUBJECT = "sandherd.v1.command.spawner.submit_task.p1"


class Collector:
    """A handler that records its messages, and does what they request."""

    def __init__(self, outcome: Outcome | Exception = DONE) -> None:
        self.seen: list[Delivery] = []
        self.outcome = outcome

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.seen.append(delivery)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    @property
    def texts(self) -> list[str]:
        return [delivery.data.decode() for delivery in self.seen]


async def publish_texts(herd: Broker, *texts: str) -> None:
    """Publish commands into the stream, as a client would."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        for text in texts:
            await client.publish(SUBJECT, text.encode(), msg_id=f"id-{text}")


async def dead_letters(herd: Broker) -> int:
    """The number of letters in DEAD."""
    async with herd.bus(Principal.EVENT_INGEST) as bus:
        return int((await bus.js.stream_info("DEAD")).state.messages)


async def test_slow_stream_is_delivered_once(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is lost between two pull requests, however short they are (nats-py's `fetch` lost 4 to 8 %)."""
    monkeypatch.setattr(pull, "PULL_EXPIRY_SECONDS", 0.03)
    monkeypatch.setattr(pull, "HEARTBEAT_SECONDS", 0.012)
    collector = Collector()
    texts = [str(number) for number in range(300)]
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await publish_texts(herd, *texts)
        await eventually(lambda: len(collector.seen) >= len(texts))
        task.cancel()
    assert collector.texts == texts
    assert {delivery.deliveries for delivery in collector.seen} == {1}


async def test_failing_handler_moves_its_message_to_dead(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose handler raises is redelivered and finally stored in DEAD (FastStream drops it at once)."""
    monkeypatch.setattr("sandherd.bus.consumers.outcomes._RETRY_DELAYS_SECONDS", (0.01,))
    collector = Collector(RuntimeError("out of order"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await publish_texts(herd, "a")
        await eventually(lambda: len(collector.seen) == 5)
        async with asyncio.timeout(PATIENCE):
            while not await dead_letters(herd):
                await asyncio.sleep(0.01)
        letter = await bus.js.get_msg("DEAD", 1)
        task.cancel()
    assert [delivery.deliveries for delivery in collector.seen] == [1, 2, 3, 4, 5]
    assert letter.data == b"a"
    assert "out of order" in (letter.headers or {})["Sandherd-Reason"]


async def test_consumer_ends_although_a_handler_swallows_the_cancellation(herd: Broker) -> None:
    """A task group would wait forever for a handler that swallows a cancellation, as nats-py's requests may do."""
    handling = asyncio.Event()

    async def swallow_one(_: Delivery) -> Outcome:
        handling.set()
        with suppress(asyncio.CancelledError):
            await asyncio.Future()
        return DONE

    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, swallow_one, health=Health()))
        await publish_texts(herd, "a")
        await asyncio.wait_for(handling.wait(), PATIENCE)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE)
    assert done == {task}


async def test_broken_contract_goes_to_dead_at_once(herd: Broker) -> None:
    """A message that can never be handled is tried once and stored with its reason; the next one is not delayed."""
    collector = Collector(ContractError(Code.INVALID_FIELD, "text: too short", field="text"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await publish_texts(herd, "a", "b")
        await eventually(lambda: len(collector.seen) == 2)
        async with asyncio.timeout(PATIENCE):
            while await dead_letters(herd) < 2:
                await asyncio.sleep(0.01)
        task.cancel()
    assert collector.texts == ["a", "b"]


async def test_retry_for_a_dependency_never_ends_in_dead(herd: Broker) -> None:
    """A message with `Retry` is redelivered after its delay, however often, and does not count as a failure."""
    collector = Collector(Retry(0.02, "the database is away"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await publish_texts(herd, "a")
        await eventually(lambda: len(collector.seen) >= 12)
        collector.outcome = DONE
        await eventually(lambda: len(collector.seen) >= 13)
        task.cancel()
    assert await dead_letters(herd) == 0


async def test_bad_message_of_a_batch_goes_to_dead_alone(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other messages of the batch are handled (typed batches lose all)."""
    monkeypatch.setattr("sandherd.bus.consumers.outcomes._RETRY_DELAYS_SECONDS", (0.01,))
    handled: Counter[str] = Counter()

    async def handle(deliveries: list[Delivery]) -> list[Outcome]:
        texts = [delivery.data.decode() for delivery in deliveries]
        if "bad" in texts:
            raise RuntimeError("it breaks everything")
        handled.update(texts)
        return [DONE] * len(texts)

    texts = [str(number) for number in range(40)]
    await publish_texts(herd, *texts[:20], "bad", *texts[20:])
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume_batches(bus, CONSUMER, handle, health=Health(), batch=100))
        async with asyncio.timeout(PATIENCE):
            while not await dead_letters(herd):
                await asyncio.sleep(0.01)
        task.cancel()
    assert handled == Counter(texts)


async def test_messages_are_handled_in_stream_order(herd: Broker) -> None:
    """With a concurrency of one, messages are handled in the order of the stream (FastStream's batches mix them)."""
    collector = Collector()
    texts = [str(number) for number in range(200)]
    await publish_texts(herd, *texts)
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await eventually(lambda: len(collector.seen) >= 200)
        task.cancel()
    assert collector.texts == texts


async def test_deleted_consumer_makes_service_unready_until_recreated(herd: Broker) -> None:
    """/readyz fails while the consumer is deleted and recovers with it (FastStream stays ready and spins)."""
    collector = Collector()
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.consume(CONSUMER, collector)
    async with service.running(), ClientSession(f"http://127.0.0.1:{service.http_port}") as web:

        async def status() -> int:
            async with web.get("/readyz") as answer:
                return answer.status

        async def becomes(wanted: int) -> None:
            async with asyncio.timeout(PATIENCE):
                while await status() != wanted:
                    await asyncio.sleep(0.02)

        await becomes(200)
        async with herd.provisioner() as jetstream:
            await jetstream.delete_consumer("COMMANDS", CONSUMER)
        await becomes(503)
        await herd.provision()
        await becomes(200)
        await publish_texts(herd, "heard again")
        await eventually(lambda: collector.texts == ["heard again"])


async def test_service_changes_no_stream(herd: Broker) -> None:
    """Starting a service leaves every stream and consumer as it was (FastStream's default rewrites them)."""

    async def configurations() -> list[object]:
        async with herd.provisioner() as jetstream:
            streams = [(await jetstream.stream_info(stream.name)).config for stream in STREAMS]
            consumers = [
                (await jetstream.consumer_info(consumer.stream, name)).config for name, consumer in BY_CONSUMER.items()
            ]
        return [*streams, *consumers]

    before = await configurations()
    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.consume(CONSUMER, Collector())
    async with service.running():
        assert await configurations() == before
    assert await configurations() == before


async def test_failing_request_handler_gets_an_error_reply(herd: Broker) -> None:
    """The requester gets an error at once, without its cause (FastStream lets it wait)."""

    async def fail(_request: IncomingRequest[ListLiveSandboxes]) -> BaseModel:
        raise RuntimeError("password=hunter2")

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(ListLiveSandboxes, fail)
    async with service.running(), herd.bus(Principal.CLIENT, project="p1") as client:
        with pytest.raises(RefusedError) as refused:
            await client.ask(ListLiveSandboxes(), "p1")
    assert refused.value.problem.code is Code.INTERNAL
    assert "hunter2" not in refused.value.problem.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"limit": 0}', b'{"unknown": 1}', b"\xff\xfe", b'{"task": "*"}'])
async def test_invalid_request_is_refused(herd: Broker, body: bytes) -> None:
    """An invalid request gets a typed error, and the next one is processed."""

    async def answer(_request: IncomingRequest[ListLiveTasks]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(ListLiveTasks, answer)
    async with service.running(), herd.bus(Principal.CLIENT, project="p1") as client:
        reply = await client.request("sandherd.v1.request.spawner.tasks.p1", body)
        assert b'"error"' in reply
        assert (await client.ask(ListLiveTasks(), "p1")).tasks == []


async def test_ids_are_no_metric_labels(herd: Broker) -> None:
    """Requests about many projects count under one label (FastStream's middleware labels each subject)."""

    async def answer(_request: IncomingRequest[ListLiveTasks]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(ListLiveTasks, answer)
    async with service.running(), herd.bus(Principal.OPERATOR) as operator:
        for number in range(5):
            await operator.ask(ListLiveTasks(), f"project-{number}")
        async with ClientSession() as web, web.get(f"http://127.0.0.1:{service.http_port}/metrics") as page:
            text = await page.text()
    assert 'sandherd_requests_total{outcome="ok",request="spawner.tasks"} 5.0' in text
    assert "project-" not in text


async def test_unreachable_broker_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Connecting to no broker ends with an error that names the address (nats-py and FastStream hang silently)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"  # bound here, so that no other process listens on it
        with pytest.raises(BusError, match=url):
            async with Bus.open(
                url, name="t", identity=ConnectionIdentity.anonymous(), inbox="_INBOX_t", connect_timeout=0.3
            ):
                pass


async def test_reconnecting_never_gives_up(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hundred failed attempts the connection still returns (nats-py closes for good after sixty)."""
    monkeypatch.setattr(publish_retries, "BROKER_BACKOFF", Backoff(base=0.001, cap=0.01))
    async with herd.bus(Principal.SPAWNER) as bus:
        await herd.kill()
        await eventually(lambda: bus._attempt > 100)
        await herd.restart()
        await eventually(lambda: bus.connected and bus.reconnects == 1)
        assert (await bus.js.consumer_info("COMMANDS", CONSUMER)).name == CONSUMER


# nats-py leaves the socket of each refused login to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_refused_login_while_reconnecting_is_retried(herd: Broker) -> None:
    """A credential that is refused for a while is tried again (FastStream's own connection would stay closed)."""
    good = herd.credentials(Principal.SPAWNER).read_text()
    jwt = good.partition("-----BEGIN NATS USER JWT-----")[2].partition("------END")[0].strip()
    seed = good.partition("-----BEGIN USER NKEY SEED-----")[2].partition("------END")[0].strip()
    shown = [jwt]
    identity = ConnectionIdentity.renewing(lambda: shown[0], seed)
    async with Bus.open(herd.url, name="t", identity=identity, inbox="_INBOX_spawner") as bus:
        shown[0] = "e30.e30.e30"
        await herd.kill()
        await herd.restart()
        await eventually(lambda: bus._attempt > 5)
        shown[0] = jwt
        await eventually(lambda: bus.connected and bus.reconnects == 1)
        gc.collect()


async def test_full_stream_is_an_error(herd: Broker) -> None:
    """Publishing into a full stream raises (nats-py's `publish_async` waits for ever and leaks its window)."""
    async with herd.provisioner() as jetstream:
        await jetstream.update_stream(
            StreamConfig(
                name="COMMANDS",
                subjects=["sandherd.v1.command.>"],
                retention=RetentionPolicy.WORK_QUEUE,
                discard=DiscardPolicy.NEW,
                max_msgs=1,
                allow_direct=True,
                duplicate_window=120,
                max_age=7 * 86_400,
            )
        )
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        await client.publish(SUBJECT, b"a", msg_id="a")
        with pytest.raises(PublishFailedError):
            await client.publish(SUBJECT, b"b", msg_id="b")


async def test_oversized_message_is_refused_before_sending(herd: Broker) -> None:
    """A message over the broker's limit is refused by the client, before it can close the connection."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        with pytest.raises(PublishRefusedError):
            await client.publish_stored(SUBJECT, b"x" * 9_000_000, msg_id="large")
        assert client.connected


async def test_messages_published_while_disconnected_are_stored(herd: Broker) -> None:
    """More messages than the client's own buffer holds are published in full once the broker is back."""
    payload = b"x" * 100_000
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        await herd.kill()
        await eventually(lambda: not client.connected)
        publishes = [asyncio.create_task(client.publish_stored(SUBJECT, payload, msg_id=f"m{n}")) for n in range(40)]
        await herd.restart()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*publishes)
    async with herd.provisioner() as jetstream:
        assert (await jetstream.stream_info("COMMANDS")).state.messages == 40


async def test_repeated_message_id_is_stored_once(herd: Broker) -> None:
    """The second publish of an id is reported as a duplicate."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        assert not (await client.publish(SUBJECT, b"a", msg_id="a")).duplicate
        assert (await client.publish(SUBJECT, b"a", msg_id="a")).duplicate


async def test_missing_consumer_is_reported(herd: Broker) -> None:
    """The health of a service whose consumer does not exist at its start names the consumer."""
    async with herd.provisioner() as jetstream:
        await jetstream.delete_consumer("COMMANDS", CONSUMER)
        with pytest.raises(nats.js.errors.NotFoundError):
            await jetstream.consumer_info("COMMANDS", CONSUMER)
    health = Health()
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, Collector(), health=health))
        await eventually(
            lambda: any(CONSUMER in problem and "does not respond" in problem for problem in _problems(health))
        )
        task.cancel()


def _problems(health: Health) -> list[str]:
    return list(health.problems().values())
