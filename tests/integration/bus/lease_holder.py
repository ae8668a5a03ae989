"""Holds a lease, and prints for each input line whether it may act. Usage: lease_holder.py URL CREDENTIALS KEY TTL."""

import asyncio
import sys
from pathlib import Path

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.telemetry import logs


async def main(url: str, credentials: str, key: str, ttl: str) -> None:
    async with Bus.open(
        url, name="t", identity=ConnectionIdentity.file(Path(credentials)), inbox="_INBOX_spawner"
    ) as bus:
        lease = Lease(bus, key, "the subprocess", ttl=float(ttl))
        keeping = asyncio.create_task(lease.run())
        await lease.wait_held()
        print("held", lease.fence, flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        try:
            lease.check()
            print("acts", lease.fence, flush=True)
        except LeaseLostError:
            print("refuses", lease.fence, flush=True)
        keeping.cancel()


logs.configure("lease-holder")
asyncio.run(main(*sys.argv[1:]))
