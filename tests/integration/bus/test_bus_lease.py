"""A lease is held by one replica at a time, on a real broker."""

import asyncio
import signal
import sys
from pathlib import Path

import nats.errors
import nats.js.errors
import pytest

from sandherd.bus.auth.permissions import SERVICES
from sandherd.bus.lease import Lease
from sandherd.contracts.streams import BUCKETS
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE

KEY = "spawner.test"
SHARING = next(bucket for bucket in BUCKETS if bucket.name == "leases").owners
HOLDER = Path(__file__).with_name("lease_holder.py")


async def start_holder(herd: Broker, ttl: float) -> asyncio.subprocess.Process:
    credentials = herd.credentials(Principal.SPAWNER)
    return await asyncio.create_subprocess_exec(
        sys.executable,
        str(HOLDER),
        herd.url,
        str(credentials),
        KEY,
        str(ttl),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )


async def line_of(process: asyncio.subprocess.Process) -> list[str]:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), PATIENCE)).decode().split()


async def test_lease_is_held_by_one_and_passes_to_the_next(herd: Broker) -> None:
    """While one replica holds the lease the other does not; once released, it passes with a greater token."""
    async with herd.bus(Principal.SPAWNER) as bus:
        # Long enough for a machine on which no replica renews for some seconds.
        first, second = Lease(bus, KEY, "first", ttl=6), Lease(bus, KEY, "second", ttl=6)
        keeping = asyncio.create_task(first.run())
        await first.wait_held()
        waiting = asyncio.create_task(second.run())
        renewed = first._revision
        async with asyncio.timeout(PATIENCE):
            while first._revision < renewed + 4:  # four renewals later, longer than a time to live
                await asyncio.sleep(0.01)
                assert not second.held
        first.check()
        keeping.cancel()
        await asyncio.wait_for(second.wait_held(), PATIENCE)
        assert not first.held
        assert second.fence > first.fence
        waiting.cancel()


async def test_killed_holder_is_replaced(herd: Broker) -> None:
    """The lease of a killed holder expires, and passes to another."""
    process = await start_holder(herd, 2)
    held = await line_of(process)
    process.kill()
    await process.wait()
    async with herd.bus(Principal.SPAWNER) as bus:
        lease = Lease(bus, KEY, "next", ttl=2)
        keeping = asyncio.create_task(lease.run())
        await asyncio.wait_for(lease.wait_held(), PATIENCE)
        assert lease.fence > int(held[1])
        keeping.cancel()


async def test_paused_holder_cannot_act(herd: Broker) -> None:
    """A holder that was suspended for longer than its lease finds at once that it may not act."""
    process = await start_holder(herd, 2)
    held = await line_of(process)
    process.send_signal(signal.SIGSTOP)
    async with herd.bus(Principal.SPAWNER) as bus:
        lease = Lease(bus, KEY, "next", ttl=2)
        keeping = asyncio.create_task(lease.run())
        await asyncio.wait_for(lease.wait_held(), PATIENCE)
        assert process.stdin is not None
        process.stdin.write(b"may you act?\n")
        process.send_signal(signal.SIGCONT)
        assert await line_of(process) == ["refuses", held[1]]
        keeping.cancel()
    await asyncio.wait_for(process.wait(), PATIENCE)


async def test_key_written_without_ttl_does_not_block_lease(herd: Broker) -> None:
    """A value without a time to live, which would stay forever, counts as no lease."""
    async with herd.bus(Principal.SPAWNER) as bus:
        foreign = await bus.js.publish(f"$KV.leases.{KEY}", b"somebody")
        lease = Lease(bus, KEY, "first", ttl=2)
        keeping = asyncio.create_task(lease.run())
        await asyncio.wait_for(lease.wait_held(), PATIENCE)
        assert lease.fence > foreign.seq
        keeping.cancel()


async def test_waiting_replica_reports_no_problem_while_holder_renews(herd: Broker) -> None:
    """A waiting replica reports no problem while the holder renews, even after three times the lease's TTL."""
    async with herd.bus(Principal.SPAWNER) as bus:
        first, second = Lease(bus, KEY, "first", ttl=2), Lease(bus, KEY, "second", ttl=2)
        async with asyncio.timeout(PATIENCE):
            keeping = asyncio.create_task(first.run())
            await first.wait_held()
            waiting = asyncio.create_task(second.run())
            begun = first._revision
            while first._revision < begun + 12:  # four times its TTL; the holder may be suspended for three times
                await asyncio.sleep(0.01)
                assert second.problem() is None
        keeping.cancel()
        waiting.cancel()


async def test_lease_without_holder_is_a_problem(herd: Broker) -> None:
    """A lease that no replica can acquire is a problem after three times its TTL, until it is held."""
    async with herd.bus(Principal.CLIENT) as stranger, herd.bus(Principal.SPAWNER) as bus:
        lease = Lease(stranger, KEY, "kept out", ttl=1)
        assert lease.problem() is None
        keeping = asyncio.create_task(lease.run())
        async with asyncio.timeout(PATIENCE):
            while lease.problem() is None:
                await asyncio.sleep(0.01)
        assert KEY in (lease.problem() or "")
        keeping.cancel()
        lease._bus = bus
        keeping = asyncio.create_task(lease.run())
        await asyncio.wait_for(lease.wait_held(), PATIENCE)
        assert lease.problem() is None
        keeping.cancel()


@pytest.mark.parametrize("attacker", [name for name in SERVICES if name in SHARING and name is not Principal.SPAWNER])
@pytest.mark.parametrize("scope", ["all", "sub"])
async def test_service_deletes_no_lease_of_another(herd: Broker, attacker: Principal, scope: str) -> None:
    """Permissions don't cover a rollup by a message's header; the shared bucket refuses it.

    With the scope `all` it would delete every lease, and two replicas would schedule at the same time.
    """
    async with herd.bus(Principal.SPAWNER) as spawner, herd.bus(attacker) as other:
        first, second = Lease(spawner, KEY, "first", ttl=60), Lease(spawner, KEY, "second", ttl=60)
        keeping = asyncio.create_task(first.run())
        await first.wait_held()
        for operation in ("", "PURGE", "DEL"):
            headers = {"Nats-Rollup": scope, "KV-Operation": operation, "Nats-TTL": "1s"}
            with pytest.raises(nats.js.errors.APIError, match="rollup"):
                await other.js.publish(f"$KV.leases.{attacker}.any", b"", headers=headers, timeout=PATIENCE)
        stored = await spawner.js.get_last_msg("KV_leases", f"$KV.leases.{KEY}")
        assert stored.data == b"first"
        await second._try_once()
        assert not second.held
        keeping.cancel()
