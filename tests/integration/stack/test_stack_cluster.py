"""Three nats-servers as one broker: replication, access, reading, and revocations."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import nats.errors
import nats.js.errors
import pytest

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity
from sandherd.bus.identity import Key, KeyKind, SpawnerKeys
from sandherd.bus.identity.revocation import RevocationFailedError, Revoker
from sandherd.bus.kv import last_message, next_message
from sandherd.bus.provision import check, provision
from sandherd.bus.stream_configs import stream_config
from sandherd.cli.doctor.infrastructure import check_servers
from sandherd.client import Context
from sandherd.client.doctor.check import CheckState
from sandherd.contracts.streams import BUCKETS, BY_STREAM, STREAMS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from sandherd.stack.cluster import retry_during_election
from sandherd.stack.nats import NatsServer, free_ports
from sandherd.stack.server_health import request_health
from tests.patience import PATIENCE

P = Principal
SERVERS = {"sandherd-1", "sandherd-2", "sandherd-3"}
# nats-py leaves the socket of each refused login to the garbage collector, which warns.
REFUSED_LOGINS = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


UNANSWERED = (BusError, nats.errors.Error, nats.js.errors.Error, TimeoutError)


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.05)


@pytest.fixture
async def cluster() -> AsyncIterator[Broker]:
    """Three servers of a herd; their first election takes most of the start."""
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    broker = Broker(directory, size=3)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.kill()
        shutil.rmtree(directory, ignore_errors=True)


@asynccontextmanager
async def at(broker: Broker, server: NatsServer, principal: Principal) -> AsyncIterator[Bus]:
    """A service that knows one server only."""
    who, inbox = ConnectionIdentity.file(broker.credentials(principal)), f"_INBOX_{principal}"
    async with Bus.open(server.url, name=principal, identity=who, inbox=inbox, connect_timeout=PATIENCE) as bus:
        yield bus


@asynccontextmanager
async def worker_at(server: NatsServer, token: str, seed: str, patience: float = 0.5) -> AsyncIterator[Bus]:
    who = ConnectionIdentity.renewing(lambda: token, seed)
    async with Bus.open(server.url, name="w", identity=who, inbox="_INBOX_sbx-1", connect_timeout=patience) as bus:
        yield bus


async def until_well(broker: Broker, *servers: str) -> None:
    """Wait until exactly these servers report within the time that they are healthy."""

    async def well() -> bool:
        return await request_health(broker.url, broker.watcher, 3) == dict.fromkeys(servers, "ok")

    await until(well)


@REFUSED_LOGINS
async def test_three_servers_are_one_broker(cluster: Broker) -> None:
    """Messages have three replicas, are read as written, need a password, and revocations hold."""
    await keeps_everything_three_times(cluster)
    await changes_the_number_only_on_request(cluster)
    await reads_what_was_written(cluster)
    await lets_no_stranger_in(cluster)
    await refuses_the_revoked_everywhere(cluster)
    await names_stopped_servers(cluster)


async def keeps_everything_three_times(cluster: Broker) -> None:
    """Check that each stream and bucket is on every server, and each service's own check finds no problem."""
    await until_well(cluster, *SERVERS)
    async with cluster.provisioner() as js:
        found = await js.streams_info()
    assert {info.config.name for info in found} == {s.name for s in STREAMS} | {b.stream for b in BUCKETS}
    for info in found:
        assert info.cluster is not None
        names = {peer.name for peer in info.cluster.replicas or []} | {info.cluster.leader}
        assert names == SERVERS, info.config.name
    for service in SERVICES:
        async with cluster.bus(service) as bus:
            assert await check(bus.js, service) == []
            assert bus.clustered


async def changes_the_number_only_on_request(cluster: Broker) -> None:
    """Check that provisioning without a number leaves the number of replicas of a stream."""
    fewer = stream_config(replace(BY_STREAM["DEAD"], max_bytes=1024 * 1024), replicas=1)
    async with cluster.provisioner() as js:
        await js.update_stream(fewer)
        await provision(js)
        config = (await js.stream_info("DEAD")).config
        assert (config.num_replicas, config.max_bytes) == (1, BY_STREAM["DEAD"].max_bytes)
        # Right after the first change the servers may know no peer with space: like every caller, retry.
        await retry_during_election(lambda: provision(js, 3), 3)
        assert (await js.stream_info("DEAD")).config.num_replicas == 3


async def reads_what_was_written(cluster: Broker) -> None:
    """Check that a new write is read through a server that does not lead (a direct read is often behind)."""
    async with cluster.provisioner() as js:
        info = (await js.stream_info("KV_tasks")).cluster
    assert info is not None
    leader = next(s for s in cluster.servers if s.membership and s.membership.name == info.leader)
    other = next(s for s in cluster.servers if s is not leader)
    async with at(cluster, leader, P.SPAWNER) as writer, at(cluster, other, P.SPAWNER) as reader:
        for number in range(150):
            some = [writer.js.publish("$KV.tasks.p1.t1", b"x" * 500) for _ in range(40)]
            last = max(ack.seq for ack in await asyncio.gather(*some))
            read = last_message(reader, "KV_tasks", "$KV.tasks.p1.t1")
            if number % 2:
                read = next_message(reader, "KV_tasks", "$KV.tasks.p1.t1", 1)
            assert (await read).seq == last


async def lets_no_stranger_in(cluster: Broker) -> None:
    """Check that a server of the same herd without the password of the routes stays alone."""
    first = cluster.servers[0]
    assert first.membership is not None
    routes = (first.membership.route, *first.membership.others)
    (own,) = free_ports(1)
    stranger = NatsServer(
        cluster.home / "stranger",
        cluster._tokens,
        membership=replace(first.membership, name="stranger", route=own, others=routes, password="guessed"),
    )

    async def refused() -> bool:
        return any("authentication error" in server.child.last_lines(50) for server in cluster.servers)

    async with stranger:
        await until(refused)
        await until_well(cluster, *SERVERS)
    logs = "".join(path.read_text() for path in (cluster.home / "logs").iterdir())
    assert first.membership.password not in logs


async def refuses_the_revoked_everywhere(cluster: Broker) -> None:
    """Check that a revoked user is disconnected from one server, and refused by the others, also by a stopped one."""
    key, now = Key.new(KeyKind.USER), datetime.now(UTC)
    token, expires = cluster.minter().mint_worker("p1", "sbx-1", key.public, life=3600)
    keys = SpawnerKeys.read(cluster.spawner_identity)
    near, far, stopped_server = cluster.servers
    await stopped_server.kill()
    async with (
        cluster.bus(P.SPAWNER) as spawner,
        Revoker.open(near.url, keys, spawner.js) as revoker,
        worker_at(far, token, key.seed, PATIENCE) as worker,
    ):
        await until_done(revoker, key.public, expires, now)

        async def cut() -> bool:
            return not worker.connected

        await until(cut)
    await stopped_server.start()
    for server in cluster.servers:
        with pytest.raises(BusError):
            async with worker_at(server, token, key.seed):
                pass


async def until_done(revoker: Revoker, key: str, expires: datetime, now: datetime) -> None:
    """Revoke, and retry while the bucket has no leader, which is harmless."""

    async def done() -> bool:
        try:
            await revoker.revoke({key: expires}, now + timedelta(seconds=1))
        except (*UNANSWERED, RevocationFailedError):
            return False
        return True

    await until(done)


async def names_stopped_servers(cluster: Broker) -> None:
    """Check that a stopped server is named by the servers and by `doctor`, and the others are healthy."""
    await until_well(cluster, *SERVERS)
    await cluster.servers[1].kill()
    await until_well(cluster, "sandherd-1", "sandherd-3")
    context = Context(
        nats_url=cluster.url, credentials=cluster.credentials(P.CLIENT), project="default", home=cluster.home
    )
    found = await check_servers(context)
    assert [check.state for check in found] == [CheckState.RIGHT, CheckState.WARNING, CheckState.RIGHT]
    assert found[1].name == f"server 127.0.0.1:{cluster.servers[1].port}"
    assert found[1].remedy is not None
