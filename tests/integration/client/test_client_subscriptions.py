"""Subscriptions through the client: events, reconnects, credentials and errors."""

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
from sandherd.bus.auth.permissions import for_user
from sandherd.bus.identity import Key, KeyKind, Registrar, bearer, credentials_text
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.revocation import FOREVER, MAX_KEYS, RevocationList, RevocationListFullError
from sandherd.client import Context, Herd, HerdError
from sandherd.client.errors import NotReachedError
from sandherd.client.subscriptions import ReceivedEvent
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events.conversation import AgentMessage
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.doubles.stream_admin import stream_admin
from tests.patience import PATIENCE
from tests.polling import eventually

Sandherd = Callable[..., Any]
NOW, SANDBOX = datetime(2026, 11, 20, 12, tzinfo=UTC), "sbx-one"


def event_of(number: int, *, project: str = "default", sandbox: str = SANDBOX) -> Envelope[Any]:
    data = AgentMessage(content=f"word {number}", content_length=6)
    source = f"/sandherd/sandbox/{sandbox}"
    return wrap(
        data, data.type, source=source, sequence=number, project=project, subject=sandbox, time=NOW, sandboxid=sandbox
    )


@pytest.fixture
async def ingest(herd: Broker, postgres: str) -> AsyncIterator[Broker]:
    """A broker with event-ingest, and the service that creates its consumers."""
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
    """The only document in the output, which also contains event-ingest's log."""
    lines = out.splitlines()
    return json.loads("".join(lines[lines.index("{") : lines.index("}") + 1]))


async def take(events: AsyncIterator[ReceivedEvent], count: int, seconds: float = 20) -> list[ReceivedEvent]:
    """Take and acknowledge this number of events."""
    found: list[ReceivedEvent] = []
    async with asyncio.timeout(seconds):  # its default is less than the redelivery of unacknowledged events takes
        while len(found) < count:
            found.append(await anext(events))
            await found[-1].ack()
    return found


@pytest.mark.own_broker
async def test_subscription_is_followed_over_a_broker_kill(ingest: Broker, subscriber: Herd) -> None:
    """Events from before, during and after the outage come in order, without a restart of the reader."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker, subscriber.receive("copy") as events:
        for number in (1, 2, 3):
            await worker.publish_event(event_of(number))
        first = await take(events, 3)
        for _ in range(2):
            await ingest.kill()
            await ingest.restart()
        for number in (4, 5, 6):
            await worker.publish_event(event_of(number))
        # A lost acknowledgement has no other effect than the redelivery of its event.
        rest: list[ReceivedEvent] = []
        while len(later := [one.event.sequence for one in rest if one.event.sequence > 3]) < 3:
            rest += await take(events, 1, PATIENCE)
    assert [one.event.sequence for one in first] == [1, 2, 3]
    assert later == [4, 5, 6]
    assert {one.event.sequence for one in rest} <= {1, 2, 3, 4, 5, 6}
    assert [one.event.data.content for one in rest][-1] == "word 6"


async def test_reader_resumes_at_its_position(ingest: Broker, subscriber: Herd) -> None:
    """The next reader gets no acknowledged events, and the unacknowledged ones marked as redelivered."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker:
        for number in (1, 2):
            await worker.publish_event(event_of(number))
        async with subscriber.receive("copy") as events:
            await take(events, 1)
            taken = await anext(events)
        assert (taken.event.sequence, taken.deliveries) == (2, 1)
        async with Herd.connect(as_subscriber(ingest)) as next_one, next_one.receive("copy") as events:
            await worker.publish_event(event_of(3))
            assert [one.event.sequence for one in await take(events, 1)] == [3]
            async with asyncio.timeout(PATIENCE):  # the broker records an acknowledgement a moment after receiving it
                while (await next_one.subscriptions()).subscriptions[0].unacknowledged != 1:
                    await asyncio.sleep(0.02)


async def test_closing_reader_returns_unread_events(ingest: Broker, subscriber: Herd) -> None:
    """The next reader gets all unread events before the acknowledgement time, each once, in any order."""
    await subscriber.subscribe("copy")
    async with ingest.bus(Principal.WORKER, sandbox=SANDBOX) as worker:
        for number in range(1, 9):
            await worker.publish_event(event_of(number))
    async with subscriber.receive("copy") as events:
        await take(events, 2)
    async with subscriber.receive("copy") as events:
        rest = await take(events, 6)
    assert sorted(one.event.sequence for one in rest) == [3, 4, 5, 6, 7, 8]


async def test_deleted_subscription_ends_its_readers(ingest: Broker, subscriber: Herd) -> None:
    """A reader ends, and takes nothing of a subscription that replaces the deleted one."""
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


async def test_reader_with_an_expired_credential_raises(ingest: Broker, subscriber: Herd, tmp_path: Path) -> None:
    """A reader whose credential the broker refuses raises an error instead of waiting forever."""
    await subscriber.subscribe("copy")
    path = tmp_path / "short.creds"
    context = Context(nats_url=ingest.url, credentials=path, project="default", home=ingest.home)
    begun = asyncio.Event()
    for life in (3, 15, 60):  # on a busy machine it is unknown how long a reader needs to begin
        path.write_text(
            Registrar(ingest.identity).mint_person(Principal.SUBSCRIBER, "short", project="default", life=life)
        )
        with pytest.raises(NotReachedError):
            await read_to_the_end(context, begun)
        if begun.is_set():
            break
    assert begun.is_set()


async def read_to_the_end(context: Context, begun: asyncio.Event) -> None:
    """The events of a reader that has none left, and whether it reached the end."""
    async with Herd.connect(context) as reader, reader.receive("copy") as events, asyncio.timeout(PATIENCE):
        begun.set()
        await anext(events)


async def test_client_credential_is_refused_with_the_needed_role(ingest: Broker, context: Context) -> None:
    """A client may create and list a subscription, but only a subscriber's credential may read it."""
    async with Herd.connect(context) as client:
        await client.subscribe("copy")
        with pytest.raises(HerdError) as error:
            async with client.receive("copy"):
                pass
    assert error.value.problem.code is Code.REFUSED
    assert "--role subscriber" in str(error.value.problem.remedy)


async def test_misdirected_event_is_ignored(ingest: Broker) -> None:
    """An event that another project's subscriber has republished to this one's readers is not received.

    Neither is a status of the broker, nor an event with the headers of a republished one.
    """
    received: list[str] = []

    async def on_event(subject: str, _document: bytes) -> None:
        received.append(subject)

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
        await listener.connection.flush()
        subject = f"{API_FROM_OUTSIDE}.CONSUMER.MSG.NEXT.EVENTS.{made.consumer}"
        reply = f"sandherd.v1.event.default.{SANDBOX}.agent.message"
        await thief.connection.bus.client.publish(subject, b'{"batch": 1, "no_wait": true}', reply)
        await thief.connection.bus.client.publish(subject, b'{"batch": 1}', reply)
        await thief.connection.bus.flush()
        own = f"sandherd.v1.event.p2.{SANDBOX}.agent.message"
        await worker.publish(own, event_of(1, project="p2").to_json(), msg_id="1", headers={"Nats-Sequence": "1"})
        await eventually(lambda: len(raw) >= 2, "a status and an event")
        await listener.connection.flush()
    assert raw == [reply, own]
    assert received == []


async def test_subscription_commands_create_list_and_delete(ingest: Broker, sandherd: Sandherd) -> None:
    """The commands have text and JSON output."""
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
    assert "subscription alerts is deleted; 0 events were waiting\n" in out
    status, _, err = await sandherd("subscriptions", "delete", "alerts")
    assert status == 1
    assert "sandherd subscriptions list" in err


async def test_credential_is_created_with_the_rights_of_its_role(
    herd: Broker, sandherd: Sandherd, tmp_path: Path
) -> None:
    """The broker accepts the credential; its file is private, never overwritten, and expires if requested."""
    path = tmp_path / "reader.creds"
    words = ["credentials", "create", "--role", "subscriber", "--project", "p7", "--file", str(path), "--life", "2h"]
    status, out, _ = await sandherd(*words, "-o", "json")
    printed = json.loads(out)
    assert (status, printed["role"], printed["project"], printed["file"]) == (0, "subscriber", "p7", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    text = path.read_text()
    who = bearer(text)
    assert (who.principal, who.project) == (Principal.SUBSCRIBER, "p7")
    assert who.expires_at is not None
    async with herd.bus(Principal.WORKER, project="p7", sandbox=SANDBOX) as worker:
        context = Context(nats_url=herd.url, credentials=path, project="p7", home=herd.home)
        received = asyncio.Event()

        async def on_event(_subject: str, _document: bytes) -> None:
            received.set()

        async with Herd.connect(context) as reader:
            await reader.connection.listen("sandherd.v1.event.p7.>", on_event)
            await reader.connection.flush()
            await worker.publish_event(event_of(1, project="p7"))
            async with asyncio.timeout(PATIENCE):
                await received.wait()
    status, _, err = await sandherd(*words)
    assert (status, path.read_text()) == (1, text)
    assert "--file" in err


@pytest.mark.own_broker
async def test_credential_is_revoked_and_replaced(herd: Broker, sandherd: Sandherd, tmp_path: Path) -> None:
    """A revocation by a copy of the file ends its connections only; the error names a command that replaces it."""
    path, copy = tmp_path / "ada.creds", tmp_path / "copy.creds"
    create = ["credentials", "create", "--role", "client", "--project", "p7", "--file", str(path)]
    assert (await sandherd(*create))[0] == 0
    copy.write_text(path.read_text())
    others = herd.credentials(Principal.CLIENT, project="p7")
    other = Context(nats_url=herd.url, credentials=others, project="p7", home=herd.home)
    context = Context(nats_url=herd.url, credentials=path, project="p7", home=herd.home)
    async with Herd.connect(other) as neighbour, Herd.connect(context) as client:
        status, out, _ = await sandherd("credentials", "revoke", str(copy), "-o", "json")
        printed = json.loads(out)
        assert (status, printed["role"], printed["project"]) == (0, "client", "p7")
        await eventually(lambda: not client.connection.connected)
        assert neighbour.connection.connected
    with pytest.raises(HerdError) as refused:
        async with Herd.connect(context, patience=1):
            pass
    assert "refused the connection" in str(refused.value)
    assert f"sandherd credentials create --role client --replace --file {path}" in (refused.value.problem.remedy or "")
    assert (await sandherd(*create, "--replace"))[0] == 0
    async with Herd.connect(context) as client:
        await client.connection.flush()


@pytest.mark.own_broker
async def test_only_users_credentials_are_revoked(herd: Broker, sandherd: Sandherd, tmp_path: Path) -> None:
    """A service's credential, a file with a foreign private key, and a missing identity are refused."""
    forged = tmp_path / "forged.creds"
    token, _ = parts_of(herd.credentials(Principal.CLIENT, project="p7").read_text())
    forged.write_text(credentials_text(token, Key.new(KeyKind.USER).seed))
    status, _, err = await sandherd("credentials", "revoke", str(forged))
    assert (status, "not a credential of this herd" in err) == (1, True)
    status, _, err = await sandherd("credentials", "revoke", str(herd.credentials(Principal.MONITOR)))
    assert (status, "not of a user" in err) == (1, True)
    file = herd.credentials(Principal.CLIENT, project="p7")
    status, _, err = await sandherd("credentials", "revoke", str(file), "--identity", str(tmp_path / "nowhere"))
    assert (status, "--identity" in err) == (1, True)


@pytest.mark.own_broker
async def test_revocation_is_refused_if_the_list_is_full(herd: Broker, sandherd: Sandherd, tmp_path: Path) -> None:
    """No revocation is reported that does not happen, and none undoes an earlier one, whichever expires first."""
    path, now = tmp_path / "ada.creds", int(datetime.now(UTC).timestamp())
    create = ["credentials", "create", "--role", "client", "--project", "p7", "--file", str(path)]
    assert (await sandherd(*create))[0] == 0
    async with herd.bus(Principal.SPAWNER) as spawner:
        listed = RevocationList.of_users(spawner.js)
        full = {f"U{number}": int(FOREVER.timestamp()) for number in range(MAX_KEYS - 1)} | {"expires": now + 3600}
        await listed.change(full, now)
        status, out, err = await sandherd("credentials", "revoke", str(path))
        assert (status, out) == (1, "")
        assert f"{MAX_KEYS} valid keys" in err
        with pytest.raises(RevocationListFullError):
            await listed.change({"sooner": now + 60}, now)
        assert (await listed.read())[0] == full
        await listed.change({"later": now + 7200}, now + 3700)
        assert (await listed.read())[0].keys() == full.keys() - {"expires"} | {"later"}


async def test_failed_credential_creation_is_reported(herd: Broker, sandherd: Sandherd, tmp_path: Path) -> None:
    """Missing keys, and a project that stands for all, each give an error of one line and no file."""
    make = ["credentials", "create", "--role", "subscriber", "--file", str(tmp_path / "x.creds")]
    status, _, err = await sandherd(*make, "--identity", str(tmp_path / "nowhere"))
    assert status == 1
    assert "--identity" in err
    status, _, err = await sandherd(*make, "--project", "fleet")
    assert status == 2
    assert "--project" in err
    assert list(tmp_path.glob("*.creds")) == []


def test_subscriber_rights_have_no_wildcard_of_consumers() -> None:
    """Every permitted consumer is named in full, as no pattern of the broker matches a part of a name."""
    found = [pattern for pattern in for_user(Principal.SUBSCRIBER, "p1", "U").publish if "EVENTS." in pattern]
    assert found
    assert all(".EVENTS.sub-p1-" in pattern for pattern in found)
