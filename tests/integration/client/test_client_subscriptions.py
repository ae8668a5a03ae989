"""A program that follows a project through the client: what it gets, what it survives, and what it is told."""

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from event_ingest.main import compose
from sandherd.bus.api_subjects import API_FROM_OUTSIDE
from sandherd.bus.identity import Registrar, bearer
from sandherd.bus.permissions import for_person
from sandherd.client import Context, Herd, HerdError
from sandherd.client.errors import NotReachedError
from sandherd.client.receiving import Received
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events.agent import AgentMessage
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE

Sandherd = Callable[..., Any]
NOW, SANDBOX = datetime(2026, 11, 20, 12, tzinfo=UTC), "sbx-one"


def said(number: int, *, project: str = "default", sandbox: str = SANDBOX) -> Envelope[Any]:
    data = AgentMessage(content=f"word {number}", content_length=6)
    source = f"/sandherd/sandbox/{sandbox}"
    return wrap(
        data, data.type, source=source, sequence=number, project=project, subject=sandbox, time=NOW, sandboxid=sandbox
    )


@pytest.fixture
async def ingest(herd: Broker, postgres: str) -> AsyncIterator[Broker]:
    """A broker with event-ingest, and who creates consumers for it."""
    async with stream_admin(herd), compose(herd.settings(Principal.EVENT_INGEST, database_url=postgres)).running():
        yield herd


@pytest.fixture
async def subscriber(ingest: Broker) -> AsyncIterator[Herd]:
    async with Herd.connect(as_subscriber(ingest)) as connected:
        yield connected


def as_subscriber(herd: Broker, project: str = "default") -> Context:
    credentials = herd.credentials(Principal.SUBSCRIBER, project=project)
    return Context(nats_url=herd.url, credentials=credentials, project=project, home=herd.home)


def document(out: str) -> Any:
    """The one document in what was shown; event-ingest, in this process, writes its log there as well."""
    lines = out.splitlines()
    return json.loads("".join(lines[lines.index("{") : lines.index("}") + 1]))


async def take(events: AsyncIterator[Received], count: int, seconds: float = 20) -> list[Received]:
    """So many events, each acknowledged."""
    found: list[Received] = []
    async with asyncio.timeout(seconds):  # by itself less than what is not acknowledged needs to come again
        while len(found) < count:
            found.append(await anext(events))
            await found[-1].ack()
    return found


async def test_a_project_is_followed_over_a_broker_that_dies(ingest: Broker, subscriber: Herd) -> None:
    """What is said before, while and after the broker is gone comes, in order, without a restart of the reader."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker, subscriber.receive("copy") as events:
        for number in (1, 2, 3):
            await worker.publish_event(said(number))
        first = await take(events, 3)
        for _ in range(2):
            await ingest.kill()
            await ingest.restart()
        for number in (4, 5, 6):
            await worker.publish_event(said(number))
        # An acknowledgement that died with the broker brings its event again, and that is all that it does.
        rest: list[Received] = []
        while len(later := [one.event.sequence for one in rest if one.event.sequence > 3]) < 3:
            rest += await take(events, 1, PATIENCE)
    assert [one.event.sequence for one in first] == [1, 2, 3]
    assert later == [4, 5, 6]
    assert {one.event.sequence for one in rest} <= {1, 2, 3, 4, 5, 6}
    assert [one.event.data.content for one in rest][-1] == "word 6"


async def test_a_reader_begins_again_where_it_stopped(ingest: Broker, subscriber: Herd) -> None:
    """What was acknowledged does not come to the next reader, what was only taken does, and says so."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker:
        for number in (1, 2):
            await worker.publish_event(said(number))
        async with subscriber.receive("copy") as events:
            await take(events, 1)
            taken = await anext(events)
        assert (taken.event.sequence, taken.deliveries) == (2, 1)
        async with Herd.connect(as_subscriber(ingest)) as next_one, next_one.receive("copy") as events:
            await worker.publish_event(said(3))
            assert [one.event.sequence for one in await take(events, 1)] == [3]
            async with asyncio.timeout(PATIENCE):  # the broker notes an acknowledgement a moment after it came
                while (await next_one.subscriptions()).subscriptions[0].unacknowledged != 1:
                    await asyncio.sleep(0.02)


async def test_a_reader_that_leaves_gives_back_what_it_has_not_looked_at(ingest: Broker, subscriber: Herd) -> None:
    """The next reader has all of it before the time for acknowledging is over, each once; the order may be another."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker:
        for number in range(1, 9):
            await worker.publish_event(said(number))
    async with subscriber.receive("copy") as events:
        await take(events, 2)
    async with subscriber.receive("copy") as events:
        rest = await take(events, 6)
    assert sorted(one.event.sequence for one in rest) == [3, 4, 5, 6, 7, 8]


async def test_one_that_is_taken_away_ends_its_readers(ingest: Broker, subscriber: Herd) -> None:
    """A reader does not wait for ever for what nobody keeps, and takes nothing of who gets its place."""
    made = await subscriber.subscribe("copy")
    async with subscriber.receive("copy") as events:
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        await subscriber.unsubscribe("copy")
        with pytest.raises(HerdError) as error:
            async with asyncio.timeout(PATIENCE):
                await waiting
    assert error.value.problem.code is Code.NOT_FOUND
    assert (await subscriber.subscribe("copy")).consumer == made.consumer


async def test_a_reader_whose_credential_ends_is_told(ingest: Broker, subscriber: Herd, tmp_path: Path) -> None:
    """It does not wait for ever for a broker that lets it in no more."""
    await subscriber.subscribe("copy")
    path = tmp_path / "short.creds"
    context = Context(nats_url=ingest.url, credentials=path, project="default", home=ingest.home)
    begun = asyncio.Event()
    for life in (3, 15, 60):  # how long a reader needs to begin, nobody knows on a busy machine
        path.write_text(
            Registrar(ingest.identity).mint_person(Principal.SUBSCRIBER, "short", project="default", life=life)
        )
        with pytest.raises(NotReachedError):
            await read_to_the_end(context, begun)
        if begun.is_set():
            break
    assert begun.is_set()


async def read_to_the_end(context: Context, begun: asyncio.Event) -> None:
    """What a reader gets for whom there is nothing, and whether it came so far."""
    async with Herd.connect(context) as reader, reader.receive("copy") as events, asyncio.timeout(PATIENCE):
        begun.set()
        await anext(events)


async def test_a_client_is_told_that_it_takes_a_subscribers_credential(ingest: Broker, context: Context) -> None:
    """A client may make a subscription and see it, but what it says is refused to it is named, with what helps."""
    async with Herd.connect(context) as client:
        await client.subscribe("copy")
        with pytest.raises(HerdError) as error:
            async with client.receive("copy"):
                pass
    assert error.value.problem.code is Code.REFUSED
    assert "--role subscriber" in str(error.value.problem.remedy)


async def test_an_event_that_is_sent_here_from_elsewhere_is_not_heard(ingest: Broker) -> None:
    """A subscriber of one project who has its own events answered to another's listeners is not listened to."""
    heard: list[str] = []

    async def on_event(subject: str, _document: bytes) -> None:
        heard.append(subject)

    raw: list[str] = []

    async def on_message(message: Msg) -> None:
        raw.append(message.subject)

    victim = Context(
        nats_url=ingest.url, credentials=ingest.credentials(Principal.CLIENT), project="default", home=ingest.home
    )
    async with (
        Herd.connect(as_subscriber(ingest, "p2")) as thief,
        Herd.connect(victim) as listener,
        ingest.bus(Principal.WORKER, project="p2", sandbox=SANDBOX) as worker,
    ):
        made = await thief.subscribe("copy")
        await listener.connection.listen("sandherd.v1.event.default.>", on_event)
        await listener.connection.bus.client.subscribe("sandherd.v1.event.default.>", cb=on_message)
        await listener.connection.settle()
        subject = f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT.EVENTS.{made.consumer}"
        reply = f"sandherd.v1.event.default.{SANDBOX}.agent.message"
        await thief.connection.bus.client.publish(subject, b'{"batch": 1}', reply)
        await thief.connection.bus.settle()
        await worker.publish_event(said(1, project="p2"))
        async with asyncio.timeout(PATIENCE):
            while not raw:
                await asyncio.sleep(0.01)
        await listener.connection.settle()
    assert raw == [f"sandherd.v1.event.p2.{SANDBOX}.agent.message"]
    assert heard == []


async def test_the_commands_make_show_and_end_one(ingest: Broker, sandherd: Sandherd) -> None:
    """`create`, `list` and `delete`, for people and for programs."""
    status, out, _ = await sandherd("subscriptions", "create", "alerts", "--type", "task.", "--from", "all")
    assert status == 0
    assert "sub-default-" in out
    status, out, _ = await sandherd("subscriptions", "list", "-o", "json")
    (one,) = document(out)["subscriptions"]
    assert (status, one["name"], one["types"], one["waiting"]) == (0, "alerts", ["task"], 0)
    status, out, _ = await sandherd("subscriptions", "list")
    assert status == 0
    assert "sub-default-" in out
    status, out, _ = await sandherd("subscriptions", "delete", "alerts")
    assert status == 0
    assert "subscription alerts is gone; 0 events waited for it\n" in out
    status, _, err = await sandherd("subscriptions", "delete", "alerts")
    assert status == 1
    assert "sandherd subscriptions list" in err


async def test_a_credential_is_made_with_the_rights_of_its_role(
    herd: Broker, sandherd: Sandherd, tmp_path: Path
) -> None:
    """The broker takes it, its file is its owner's alone, it is never written over another, and it ends if it is to."""
    path = tmp_path / "reader.creds"
    words = ["credentials", "create", "--role", "subscriber", "--project", "p7", "--file", str(path), "--life", "2h"]
    status, out, _ = await sandherd(*words, "-o", "json")
    told = json.loads(out)
    assert (status, told["role"], told["project"], told["file"]) == (0, "subscriber", "p7", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    who = bearer(text)
    assert (who.principal, who.project) == (Principal.SUBSCRIBER, "p7")
    assert who.expires_at is not None
    async with herd.bus(Principal.WORKER, project="p7", sandbox=SANDBOX) as worker:
        context = Context(nats_url=herd.url, credentials=path, project="p7", home=herd.home)
        heard = asyncio.Event()

        async def on_event(_subject: str, _document: bytes) -> None:
            heard.set()

        async with Herd.connect(context) as reader:
            await reader.connection.listen("sandherd.v1.event.p7.>", on_event)
            await reader.connection.settle()
            await worker.publish_event(said(1, project="p7"))
            async with asyncio.timeout(PATIENCE):
                await heard.wait()
    status, _, err = await sandherd(*words)
    assert (status, path.read_text()) == (1, text)
    assert "--file" in err


async def test_what_can_not_be_made_is_said(herd: Broker, sandherd: Sandherd, tmp_path: Path) -> None:
    """No keys, and a project that means all of them: one line each, and no file."""
    make = ["credentials", "create", "--role", "subscriber", "--file", str(tmp_path / "x.creds")]
    status, _, err = await sandherd(*make, "--identity", str(tmp_path / "nowhere"))
    assert status == 1
    assert "--identity" in err
    status, _, err = await sandherd(*make, "--project", "fleet")
    assert status == 2
    assert "--project" in err
    assert list(tmp_path.glob("*.creds")) == []


def test_a_subscribers_rights_name_no_wildcard_of_consumers() -> None:
    """Every consumer that it may use is named in full: no pattern of the broker stands for a part of a name."""
    found = [pattern for pattern in for_person(Principal.SUBSCRIBER, "p1", "U").publish if "EVENTS." in pattern]
    assert found
    assert all(".EVENTS.sub-p1-" in pattern for pattern in found)
