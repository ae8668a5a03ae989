"""The credentials that check whether nats-server stores can change nothing, with any reply subject of a request.

They are files in deployments (`creds/store-guard`). The server does not check reply subjects: in the account of the
streams an acknowledgement overwrites a record, and in the system account a reply deletes all streams of an account.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from sandherd.bus.api_subjects import API, API_FROM_OUTSIDE
from sandherd.bus.auth.health_subjects import HEALTH, WATCHER, WATCHER_INBOX
from sandherd.bus.auth.permissions import Permissions, probe_subject
from sandherd.bus.auth.setup_permissions import PROBE, PROBE_INBOX, PROBE_PERMISSIONS, WATCHER_PERMISSIONS
from sandherd.bus.connection import Bus, ConnectionCallbacks, ConnectionIdentity
from sandherd.bus.identity import Key, KeyKind, Registrar, claims, credentials_text
from sandherd.bus.identity.credentials import parts_of
from sandherd.bus.identity.keys import sign_claims
from sandherd.contracts.subjects import TABLE, Principal
from sandherd.stack.broker import Broker
from sandherd.stack.store_probe import StoreProbe
from tests.integration.bus.test_permissions_forwarding import ALL_STREAMS, TAG, contents, listening, seed, targets
from tests.integration.bus.test_permissions_matrix import BROKERS_OWN, MALFORMED, Publisher, listen_to, subjects
from tests.patience import PATIENCE

P = Principal
WROTE = probe_subject(PROBE)
REQUESTS = {PROBE: (WROTE, PROBE_INBOX), WATCHER: (HEALTH, WATCHER_INBOX)}
"""The subjects to which each credential may publish, and its inbox."""


def minted(herd: Broker, name: str) -> str:
    registrar = Registrar(herd.identity)
    return registrar.mint_probe() if name == PROBE else registrar.mint_watcher()


@asynccontextmanager
async def attacker(herd: Broker, name: str, credentials: str) -> AsyncIterator[Publisher]:
    """A connection with one of these credentials, and the broker's refusals."""
    watch, violations = ConnectionCallbacks(), list[str]()
    watch.violated = violations.append
    token, key = parts_of(credentials)
    identity = ConnectionIdentity.renewing(lambda: token, key)
    async with Bus.open(
        herd.url, name=name, identity=identity, inbox=REQUESTS[name][1], connect_timeout=PATIENCE, watch=watch
    ) as bus:
        yield Publisher(P.OPERATOR, bus, violations)


def system_targets(herd: Broker) -> Iterator[str]:
    """Subjects on which the server itself, or the system account, executes a request."""
    streams = herd.identity.root_key("herd").public
    yield f"{API}.ACCOUNT.PURGE.{streams}"
    yield f"{API}.META.LEADER.STEPDOWN"
    yield f"{API}.SERVER.REMOVE"
    yield "$SYS.REQ.CLAIMS.UPDATE"
    yield "$SYS.REQ.CLAIMS.DELETE"
    yield f"$SYS.ACCOUNT.{streams}.CLAIMS.UPDATE"
    yield "$SYS.REQ.SERVER.PING.CONNZ"
    yield f"{API_FROM_OUTSIDE}.STREAM.CREATE.THIEF"


def replies(herd: Broker) -> list[str]:
    """Records, events, inboxes, the JetStream API, the system account, and the requests themselves."""
    own = ["$KV.tasks.p1.task-1", WROTE, HEALTH, *(f"{inbox}.x" for _, inbox in REQUESTS.values())]
    return [*dict.fromkeys([*own, *targets(), *system_targets(herd)])]


@pytest.mark.parametrize("name", REQUESTS)
async def test_no_reply_to_a_store_guard_is_stored_or_executed(herd: Broker, name: str) -> None:
    """With each reply subject of each request only the probes are stored, and no one else receives anything.

    In the account of the streams, a probe with the reply subject `$KV.tasks.p1.task-1` replaced the record.
    """
    await seed(herd)
    held, subject = await contents(herd), REQUESTS[name][0]
    async with listening(herd, P.WORKER) as received, attacker(herd, name, minted(herd, name)) as publisher:
        sent = replies(herd)
        for reply in sent:
            await publisher.bus.client.publish(subject, b"{}", reply=reply, headers={TAG: "1"})
        await publisher.bus.flush(timeout=PATIENCE)
        assert await publisher.refused("publish") == set()
        # A reply of the system account passes through the import of the probe, where it is another probe.
        probes = len(sent) if name == PROBE else sent.count(WROTE)
        after = await contents(herd)
        assert after["PROBE"][0] - held["PROBE"][0] <= probes
        assert after == held | {"PROBE": after["PROBE"]}
        assert received == []


@pytest.mark.parametrize("name", REQUESTS)
async def test_store_guard_receives_only_the_reply_to_its_request(herd: Broker, name: str) -> None:
    """Replies to one credential do not reach the other one of its account, unless it has requested them."""
    other = next(one for one in REQUESTS if one != name)
    stolen: list[str] = []

    async def receive(message: Msg) -> None:
        stolen.append(message.subject)

    subject, inbox = REQUESTS[name]
    async with (
        attacker(herd, other, minted(herd, other)) as victim,
        attacker(herd, name, minted(herd, name)) as publisher,
    ):
        await victim.bus.client.subscribe(f"{REQUESTS[other][1]}.>", cb=receive)
        await victim.bus.flush()
        await publisher.bus.client.publish(subject, b"{}", reply=f"{inbox}.none")
        assert (await publisher.bus.client.request(subject, b"{}", timeout=PATIENCE)).data.startswith(b"{")
        await publisher.bus.flush()
        await victim.bus.flush()
    assert stolen == []


@pytest.mark.parametrize("name", REQUESTS)
async def test_store_guard_publishes_and_subscribes_to_its_requests_only(herd: Broker, name: str) -> None:
    """Every other subject of the tables, the broker and the system account is refused."""
    subject, inbox = REQUESTS[name]
    everything = {one for row in TABLE for one, _ in subjects(row)} | {*BROKERS_OWN, *MALFORMED, WROTE, HEALTH}
    everything |= {*system_targets(herd), "$SYS.REQ.SERVER.PING", "$SYS.REQ.SERVER.PING.VARZ", "sandherd.probe.monitor"}
    others = ["_INBOX.x", "_INBOX_spawner.x", "$KV.>", "$JS.>", "$SYS.>", "sandherd.>", ">"]
    async with attacker(herd, name, minted(herd, name)) as publisher:
        for one in everything:
            await publisher.bus.client.publish(one, b"")
        assert await publisher.refused("publish") == {one.lower() for one in everything - {subject}}
        await listen_to(publisher, [*others, f"{inbox}.x"])
        assert await publisher.refused("subscription") == {one.lower() for one in others}


def placed_in(herd: Broker, account: str, signing: str, name: str, allowed: Permissions) -> str:
    """A credential with the same permissions in another account."""
    key = Key.new(KeyKind.USER)
    public = herd.identity.root_key(account).public
    body = claims.user(key.public, name=name, account=public, principal=P.OPERATOR, permissions=allowed)
    return credentials_text(sign_claims(body, herd.identity.root_key(signing), 1), key.seed)


async def test_same_probe_overwrites_a_record_within_the_account_of_the_streams(herd: Broker) -> None:
    """In the account of the streams, where it is permitted, the same probe overwrites a record."""
    await seed(herd)
    before = (await contents(herd))["KV_tasks"][0]
    credentials = placed_in(herd, "herd", "streams-signing", PROBE, PROBE_PERMISSIONS)
    async with attacker(herd, PROBE, credentials) as publisher:
        await publisher.bus.client.publish(WROTE, b"{}", reply="$KV.tasks.p1.task-1")
        async with asyncio.timeout(PATIENCE):
            while (await contents(herd))["KV_tasks"][0] == before:
                await asyncio.sleep(0.01)


@pytest.mark.long
async def test_in_a_cluster_no_reply_to_a_health_request_deletes_streams() -> None:
    """No reply deletes streams; a credential of the system account with the same permissions deletes all of them."""
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    cluster = Broker(directory, size=3)
    try:
        await cluster.start()
        purge = f"{API}.ACCOUNT.PURGE.{cluster.identity.root_key('herd').public}"
        async with cluster.provisioner() as js:
            async with attacker(cluster, WATCHER, minted(cluster, WATCHER)) as publisher:
                for reply in replies(cluster):
                    await publisher.bus.client.publish(HEALTH, b"", reply=reply)
                async with StoreProbe.open(*cluster.probed) as probe:
                    assert len(await probe.read_health({server.server_name for server in cluster.servers})) == 3
                await publisher.bus.flush(timeout=PATIENCE)
            assert len(await js.streams_info()) == len(ALL_STREAMS)
            credentials = placed_in(cluster, "system", "system-signing", WATCHER, WATCHER_PERMISSIONS)
            async with attacker(cluster, WATCHER, credentials) as publisher, asyncio.timeout(PATIENCE):
                await publisher.bus.client.publish(HEALTH, b"", reply=purge)
                while await js.streams_info():
                    await asyncio.sleep(0.1)
    finally:
        await cluster.kill()
        shutil.rmtree(directory, ignore_errors=True)
