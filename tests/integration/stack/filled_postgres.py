"""A program that fills the small file system of a local Postgres, and then frees space. It prints its results.

    unshare --mount python -m tests.integration.stack.filled_postgres FOLDER bytes|inodes table|log keep|kill

It needs its own mount namespace: the server's user must reach the files, and nothing may stay mounted.
"""

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

import asyncpg

from sandherd.stack.postgres import PostgresServer
from sandherd.stack.process_monitor import ProcessMonitor

FAULTS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)
OPTIONS = {"bytes": "size=128m,nr_inodes=20000,mode=0755", "inodes": "size=256m,nr_inodes=2000,mode=0755"}
ROWS = {
    "table": "INSERT INTO kept SELECT $1, md5(random()::text) FROM generate_series(1, 1000)",
    "log": "WITH kept AS (INSERT INTO kept VALUES ($1, ''))"
    " SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000))",
}
"""What grows: the table, or only the log (WAL). Postgres can't continue without the log, and ends (PANIC)."""
PATIENCE = 120
WHILE_FULL = 5
"""Seconds within which several starts fail."""


@dataclass
class Found:
    """`committed` are numbers, `lost` those of them that are missing in the end; `resumed` is in seconds."""

    committed: list[int] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    restarts: int = 0
    resumed: float = 0
    log: str = ""


@dataclass
class Writer:
    """Commits rows with successive numbers, each over a new connection."""

    server: PostgresServer
    what: str
    number: int = 0
    committed: list[int] = field(default_factory=list)

    async def write(self) -> bool:
        self.number += 1
        try:
            connection = await asyncpg.connect(self.server.url("postgres"), timeout=5)
            try:
                await connection.execute(ROWS[self.what], self.number, timeout=5)
            finally:
                connection.terminate()
        except FAULTS:
            return False
        self.committed.append(self.number)
        return True

    async def write_for(self, seconds: float) -> None:
        end = asyncio.get_running_loop().time() + seconds
        while asyncio.get_running_loop().time() < end:
            await self.write()
            await asyncio.sleep(0.1)

    async def resumed(self) -> float:
        begun = asyncio.get_running_loop().time()
        async with asyncio.timeout(PATIENCE):
            while not await self.write():
                await asyncio.sleep(0.05)
        return asyncio.get_running_loop().time() - begun

    async def lost(self) -> list[int]:
        connection = await asyncpg.connect(self.server.url("postgres"))
        there = {row["number"] for row in await connection.fetch("SELECT DISTINCT number FROM kept")}
        await connection.close()
        return [number for number in self.committed if number not in there]


def fill(junk: Path, kind: str) -> None:
    """Use every byte or every inode."""
    junk.mkdir()
    if kind == "inodes":
        with suppress(OSError):
            for number in range(10**6):
                (junk / str(number)).touch()
        return
    for size in (65_536, 512):
        with suppress(OSError), (junk / "bytes").open("ab", buffering=0) as file:
            while True:
                file.write(b"x" * size)


@asynccontextmanager
async def stored(server: PostgresServer) -> AsyncIterator[ProcessMonitor]:
    """The numbers that are stored, read while Postgres is restarted as the supervisor does."""
    keeper = ProcessMonitor("postgres", server)
    async with server:
        care = asyncio.create_task(keeper.run())
        connection = await asyncpg.connect(server.url("postgres"))
        await connection.execute("CREATE TABLE kept (number integer, text text)")
        await connection.close()
        try:
            yield keeper
        finally:
            care.cancel()
            with suppress(asyncio.CancelledError):
                await care


async def play(folder: Path, kind: str, what: str, end: str) -> Found:
    """Fill it, write until that is refused and a while longer, free space, and write until a commit succeeds."""
    server, found = PostgresServer(folder / "postgres"), Found()
    writer = Writer(server, what)
    async with stored(server) as keeper:
        assert await writer.write()
        fill(folder / "junk", kind)
        while await writer.write():
            pass
        if end == "kill":
            await server.kill()
        await writer.write_for(WHILE_FULL)
        shutil.rmtree(folder / "junk")
        try:
            found.resumed = await writer.resumed()
        except TimeoutError:
            found.resumed = PATIENCE
        else:
            found.lost = await writer.lost()
        found.committed, found.restarts = writer.committed, keeper.restarts
        found.log = (server.directory / "postgres.log").read_text(errors="replace")
    return found


if __name__ == "__main__":
    place = Path(sys.argv[1])
    kind, what, end = sys.argv[2:]
    subprocess.run(["mount", "-t", "tmpfs", "-o", OPTIONS[kind], "tmpfs", str(place)], check=True)
    print(json.dumps(asdict(asyncio.run(play(place, kind, what, end)))))
