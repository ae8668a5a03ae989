"""An account at its connection limit does not affect other accounts, and the broker continues to store."""

import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import nats.errors
import pytest
from nats.aio.client import Client

from sandherd.bus.auth.account_names import account_of
from sandherd.bus.connection import Bus, BusError, ConnectionCallbacks, ConnectionIdentity
from sandherd.bus.identity import bearer
from sandherd.bus.identity.capacity import SUBSCRIPTIONS, Capacity
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

P = Principal
DESCRIPTORS = 400
"""The number of files that the broker may open; JetStream always needs some of them."""


@pytest.fixture
async def small(own_directory: Path) -> AsyncIterator[Broker]:
    """A broker that may open few files."""
    broker = Broker(own_directory, capacity=Capacity.for_descriptors(DESCRIPTORS))
    await broker.start()
    pid = broker.child.pid
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
    yield broker
    await broker.kill()


async def flooded(herd: Broker, principal: Principal, most: int, stack: AsyncExitStack) -> int:
    """Open connections with one credential, until one is refused. Returns their number."""
    path = herd.credentials(principal, project="p1", sandbox="sbx-1")
    options = ConnectionIdentity.file(path).options()
    for count in range(most):
        client = Client()

        async def quiet(_error: Exception) -> None:
            """Do nothing about the refusal, which the test expects."""

        try:
            await client.connect(
                servers=[herd.url],
                allow_reconnect=False,
                max_reconnect_attempts=0,
                connect_timeout=20,  # slow is not refused
                error_cb=quiet,
                **options,
            )
        except (nats.errors.Error, OSError, TimeoutError):
            with suppress(nats.errors.Error, OSError):
                await client.close()
            return count
        stack.push_async_callback(client.close)
    return most


async def works_for_all_others(herd: Broker, flooder: Principal) -> None:
    """Check that users of all other accounts connect, streams store, and the broker can be provisioned."""
    for principal in (P.SPAWNER, P.EVENT_INGEST, P.MONITOR, P.MESSAGE_RELAY, P.CLIENT, P.OPERATOR, P.WORKER):
        if account_of(principal) is account_of(flooder):
            continue
        async with herd.bus(principal, project="p1", sandbox="sbx-9", connect_timeout=PATIENCE) as bus:
            await bus.flush(timeout=PATIENCE)
    async with herd.bus(P.SPAWNER) as spawner:
        for number in range(20):
            await spawner.publish(f"$KV.tasks.p1.task-{number}", b"{}", msg_id=f"{flooder}{number}")
            await spawner.publish("sandherd.v1.event.p1.task-1.task.submitted", b"{}", msg_id=f"e{flooder}{number}")
    await herd.provision()


@pytest.mark.parametrize("flooder", [P.WORKER, P.JOINER, P.CLIENT, P.SUBSCRIBER, P.MONITOR])
async def test_credential_is_limited_to_the_connections_of_its_account(small: Broker, flooder: Principal) -> None:
    """Services, clients, sandboxes and JetStream of other accounts continue."""
    limit = small.capacity.of(account_of(flooder))
    async with AsyncExitStack() as stack:
        held = await flooded(small, flooder, small.capacity.connections, stack)
        assert 0 < held <= limit
        await works_for_all_others(small, flooder)


@pytest.mark.parametrize("principal", [P.WORKER, P.CLIENT, P.SUBSCRIBER, P.OPERATOR])
async def test_connection_is_limited_in_subscriptions(herd: Broker, principal: Principal) -> None:
    """The broker accepts no subscription beyond a connection's limit; other connections continue."""
    path = herd.credentials(principal, project="p1", sandbox="sbx-1")
    who = bearer(path.read_text())
    watch, most = ConnectionCallbacks(), SUBSCRIPTIONS[account_of(principal)]
    async with Bus.open(
        herd.url,
        name="many",
        identity=ConnectionIdentity.file(path),
        inbox=who.inbox,
        watch=watch,
        connect_timeout=PATIENCE,
    ) as bus:
        for number in range(most + 50):
            await bus.client.subscribe(f"{who.inbox}.{number}")
        with suppress(nats.errors.Error):
            await bus.flush()
        assert "subscriptions" in str(bus.client.last_error).lower()
        # The limit is that of each connection: nats-server has none for all connections of a user or an account.
        async with Bus.open(
            herd.url, name="more", identity=ConnectionIdentity.file(path), inbox=who.inbox, connect_timeout=PATIENCE
        ) as more:
            await more.client.subscribe(f"{who.inbox}.more")
            await more.flush()
            assert more.client.last_error is None
    async with herd.bus(P.SPAWNER) as spawner:
        await spawner.publish("$KV.tasks.p1.task-1", b"{}", msg_id="x")


async def test_herd_starts_with_both_outer_accounts_full(small: Broker) -> None:
    """At the connection limits of sandboxes and clients every service connects and the streams are provisioned."""
    async with AsyncExitStack() as stack:
        for flooder in (P.WORKER, P.CLIENT):
            assert await flooded(small, flooder, small.capacity.connections, stack) > 0
        for service in (P.SPAWNER, P.EVENT_INGEST, P.MONITOR, P.MESSAGE_RELAY):
            async with small.bus(service) as bus:
                await bus.flush()
        await small.provision()
        with pytest.raises(BusError):
            async with small.bus(P.CLIENT, project="p1", connect_timeout=0):
                pass
