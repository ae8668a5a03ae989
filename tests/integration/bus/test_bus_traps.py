"""Each trap that was measured in nats-py and FastStream, and touches us: these fail with the trap in place."""

import asyncio
import gc
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import nats.js.errors
import pytest
from aiohttp import ClientSession
from nats.js.api import DiscardPolicy, RetentionPolicy, StreamConfig
from pydantic import BaseModel

from sandherd.bus import connection, pulling
from sandherd.bus.connection import Bus, BusError, Identity, PublishFailedError, PublishRefusedError, RefusedError
from sandherd.bus.consuming import DONE, Delivery, Outcome, Retry, consume, consume_batches
from sandherd.bus.health import Health
from sandherd.bus.service import Asked, Service
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import LiveSandboxes, LiveTasks, TaskList
from sandherd.contracts.streams import BY_CONSUMER, STREAMS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

CONSUMER = "spawner-commands"
SUBJECT = "sandherd.v1.command.spawner.submit_task.p1"


async def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class Collector:
    """A handler that notes what it was given, and does as it is told."""

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


async def say(herd: Broker, *texts: str) -> None:
    """Put commands into the stream, as a client would."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        for text in texts:
            await client.publish(SUBJECT, text.encode(), msg_id=f"id-{text}")


async def dead_letters(herd: Broker) -> int:
    """How many lie in DEAD."""
    async with herd.bus(Principal.EVENT_INGEST) as bus:
        return int((await bus.js.stream_info("DEAD")).state.messages)


async def test_a_trickle_is_delivered_once(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """No message is lost between two pull requests, however short they are (nats-py's `fetch` lost 4 to 8 %)."""
    monkeypatch.setattr(pulling, "EXPIRES", 0.03)
    monkeypatch.setattr(pulling, "HEARTBEAT", 0.012)
    collector = Collector()
    texts = [str(number) for number in range(300)]
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await say(herd, *texts)
        await until(lambda: len(collector.seen) >= len(texts))
        task.cancel()
    assert collector.texts == texts
    assert {delivery.deliveries for delivery in collector.seen} == {1}


async def test_an_exception_is_no_end(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message whose handler raises comes again, and is kept in DEAD at last (FastStream gives it up at once)."""
    monkeypatch.setattr("sandherd.bus.outcomes._RETRY_WAITS", (0.01,))
    collector = Collector(RuntimeError("out of order"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await say(herd, "a")
        await until(lambda: len(collector.seen) == 5)
        async with asyncio.timeout(PATIENCE):
            while not await dead_letters(herd):
                await asyncio.sleep(0.01)
        letter = await bus.js.get_msg("DEAD", 1)
        task.cancel()
    assert [delivery.deliveries for delivery in collector.seen] == [1, 2, 3, 4, 5]
    assert letter.data == b"a"
    assert "out of order" in (letter.headers or {})["Sandherd-Reason"]


async def test_a_broken_contract_goes_to_dead_at_once(herd: Broker) -> None:
    """What can never be handled is tried once and kept with its reason; the next message is not held up."""
    collector = Collector(ContractError(Code.INVALID_FIELD, "text: too short", field="text"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await say(herd, "a", "b")
        await until(lambda: len(collector.seen) == 2)
        async with asyncio.timeout(PATIENCE):
            while await dead_letters(herd) < 2:
                await asyncio.sleep(0.01)
        task.cancel()
    assert collector.texts == ["a", "b"]


async def test_waiting_for_a_dependency_never_ends_in_dead(herd: Broker) -> None:
    """`Retry` comes after its delay, as often as it takes, and counts against nobody."""
    collector = Collector(Retry(0.02, "the database is away"))
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await say(herd, "a")
        await until(lambda: len(collector.seen) >= 12)
        collector.outcome = DONE
        await until(lambda: len(collector.seen) >= 13)
        task.cancel()
    assert await dead_letters(herd) == 0


async def test_one_bad_message_spoils_no_batch(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that breaks a whole batch ends in DEAD alone; those beside it are handled (typed batches lose all)."""
    monkeypatch.setattr("sandherd.bus.outcomes._RETRY_WAITS", (0.01,))
    handled: Counter[str] = Counter()

    async def handle(deliveries: list[Delivery]) -> list[Outcome]:
        texts = [delivery.data.decode() for delivery in deliveries]
        if "bad" in texts:
            raise RuntimeError("it breaks everything")
        handled.update(texts)
        return [DONE] * len(texts)

    texts = [str(number) for number in range(40)]
    await say(herd, *texts[:20], "bad", *texts[20:])
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume_batches(bus, CONSUMER, handle, health=Health(), batch=100))
        async with asyncio.timeout(PATIENCE):
            while not await dead_letters(herd):
                await asyncio.sleep(0.01)
        task.cancel()
    assert handled == Counter(texts)


async def test_messages_come_in_order(herd: Broker) -> None:
    """With a concurrency of one, messages are handled in the order of the stream (FastStream's batches mix them)."""
    collector = Collector()
    texts = [str(number) for number in range(200)]
    await say(herd, *texts)
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, collector, health=Health()))
        await until(lambda: len(collector.seen) >= 200)
        task.cancel()
    assert collector.texts == texts


async def test_a_deaf_service_is_red_and_hears_again(herd: Broker) -> None:
    """/readyz turns red when a consumer is deleted, and green when it is back (FastStream stays green and spins)."""
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
        await say(herd, "heard again")
        await until(lambda: collector.texts == ["heard again"])


async def test_a_service_changes_no_stream(herd: Broker) -> None:
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


async def test_a_failing_answer_is_answered(herd: Broker) -> None:
    """An asker is told at once that the service failed, and not what with (FastStream lets it wait)."""

    async def fail(_asked: Asked[LiveSandboxes]) -> BaseModel:
        raise RuntimeError("password=hunter2")

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(LiveSandboxes, fail)
    async with service.running(), herd.bus(Principal.CLIENT, project="p1") as client:
        with pytest.raises(RefusedError) as refused:
            await client.ask(LiveSandboxes(), "p1")
    assert refused.value.problem.code is Code.INTERNAL
    assert "hunter2" not in refused.value.problem.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"limit": 0}', b'{"unknown": 1}', b"\xff\xfe", b'{"task": "*"}'])
async def test_rubbish_is_refused(herd: Broker, body: bytes) -> None:
    """A request that is none is refused with a typed error, and the next one is answered."""

    async def answer(_asked: Asked[LiveTasks]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(LiveTasks, answer)
    async with service.running(), herd.bus(Principal.CLIENT, project="p1") as client:
        reply = await client.request("sandherd.v1.request.spawner.tasks.p1", body)
        assert b'"error"' in reply
        assert (await client.ask(LiveTasks(), "p1")).tasks == []


async def test_no_id_becomes_a_label(herd: Broker) -> None:
    """What is asked about many projects is counted under one label (FastStream's middleware labels each subject)."""

    async def answer(_asked: Asked[LiveTasks]) -> BaseModel:
        return TaskList(tasks=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(LiveTasks, answer)
    async with service.running(), herd.bus(Principal.OPERATOR) as operator:
        for number in range(5):
            await operator.ask(LiveTasks(), f"project-{number}")
        async with ClientSession() as web, web.get(f"http://127.0.0.1:{service.http_port}/metrics") as page:
            text = await page.text()
    assert 'sandherd_requests_total{outcome="ok",request="spawner.tasks"} 5.0' in text
    assert "project-" not in text


async def test_a_broker_that_is_not_there_is_waited_for_and_said(tmp_path: Path) -> None:
    """Connecting to nothing ends with an error that names the place (nats-py and FastStream hang without a word)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"nats://127.0.0.1:{free.getsockname()[1]}"  # bound meanwhile, so that nobody else listens there
        with pytest.raises(BusError, match=url):
            async with Bus.open(url, name="t", identity=Identity.anonymous(), inbox="_INBOX_t", patience=0.3):
                pass


async def test_reconnecting_has_no_end(herd: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a hundred failed attempts the connection still comes back (nats-py closes for good after sixty)."""
    monkeypatch.setattr(connection, "LONGEST_WAIT", 0.01)
    monkeypatch.setattr(connection.full_jitter, "__defaults__", (0.001, 0.01))
    async with herd.bus(Principal.SPAWNER) as bus:
        await herd.kill()
        await until(lambda: bus._attempt > 100)
        await herd.restart()
        await until(lambda: bus.connected and bus.reconnects == 1)
        assert (await bus.js.consumer_info("COMMANDS", CONSUMER)).name == CONSUMER


# nats-py leaves the socket of each refused login to the garbage collector, which says so.
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_refused_login_while_reconnecting_is_not_the_end(herd: Broker) -> None:
    """A credential that is refused for a while is tried again (FastStream's own connection would stay deaf)."""
    good = herd.credentials(Principal.SPAWNER).read_text()
    jwt = good.partition("-----BEGIN NATS USER JWT-----")[2].partition("------END")[0].strip()
    seed = good.partition("-----BEGIN USER NKEY SEED-----")[2].partition("------END")[0].strip()
    shown = [jwt]
    identity = Identity.renewing(lambda: shown[0], seed)
    async with Bus.open(herd.url, name="t", identity=identity, inbox="_INBOX_spawner") as bus:
        shown[0] = "e30.e30.e30"
        await herd.kill()
        await herd.restart()
        await until(lambda: bus._attempt > 5)
        shown[0] = jwt
        await until(lambda: bus.connected and bus.reconnects == 1)
        gc.collect()


async def test_a_full_stream_is_an_error(herd: Broker) -> None:
    """Publishing into a stream that is full raises (nats-py's `publish_async` waits for ever and leaks its window)."""
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


async def test_what_can_never_be_published_is_refused(herd: Broker) -> None:
    """A message over the broker's limit is refused here, before it can close the connection."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        with pytest.raises(PublishRefusedError):
            await client.publish_stored(SUBJECT, b"x" * 9_000_000, msg_id="large")
        assert client.connected


async def test_what_is_said_while_the_broker_is_away_is_kept(herd: Broker) -> None:
    """More than the client's own buffer holds is published in full once the broker is back."""
    payload = b"x" * 100_000
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        await herd.kill()
        await until(lambda: not client.connected)
        said = [asyncio.create_task(client.publish_stored(SUBJECT, payload, msg_id=f"m{n}")) for n in range(40)]
        await herd.restart()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*said)
    async with herd.provisioner() as jetstream:
        assert (await jetstream.stream_info("COMMANDS")).state.messages == 40


async def test_a_repetition_is_one_message(herd: Broker) -> None:
    """The same id published twice is stored once and says so."""
    async with herd.bus(Principal.CLIENT, project="p1") as client:
        assert not (await client.publish(SUBJECT, b"a", msg_id="a")).duplicate
        assert (await client.publish(SUBJECT, b"a", msg_id="a")).duplicate


async def test_a_missing_consumer_is_named(herd: Broker) -> None:
    """A service that is started before its consumer is there says which one it waits for."""
    async with herd.provisioner() as jetstream:
        await jetstream.delete_consumer("COMMANDS", CONSUMER)
        with pytest.raises(nats.js.errors.NotFoundError):
            await jetstream.consumer_info("COMMANDS", CONSUMER)
    health = Health()
    async with herd.bus(Principal.SPAWNER) as bus:
        task = asyncio.create_task(consume(bus, CONSUMER, Collector(), health=health))
        await until(lambda: any(CONSUMER in problem and "does not answer" in problem for problem in _problems(health)))
        task.cancel()


def _problems(health: Health) -> list[str]:
    return list(health.problems().values())
