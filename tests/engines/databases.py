"""A replica of a Postgres, and a PgBouncer before one, of the programs that operators run."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from sandherd.stack import postgres_user
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.directory_access import grant_traversal
from sandherd.stack.postgres import SUPERUSER, PostgresServer, binaries
from tests.engines.packages import unpacked
from tests.patience import PATIENCE

_TRUST = "local all all trust\nlocal replication all trust\n"
_POOLER = """
[databases]
* = host={sockets} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {sockets}
auth_type = any
pool_mode = transaction
default_pool_size = 6
ignore_startup_parameters =
"""
POOLER_PORT = 6432


class Replica(PostgresServer):
    """A streaming replica, until it is promoted."""

    def _listens(self) -> bool:
        """Whether the replica accepts connections: its lock file then says `standby`."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
            return int(lines[0]) == self.child.pid and lines[7].strip() in {"ready", "standby"}
        except (FileNotFoundError, IndexError):
            return False


async def execute(server: PostgresServer, *statements: str) -> None:
    connection = await asyncpg.connect(server.url(SUPERUSER))
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def trust(server: PostgresServer) -> None:
    """Permit programs of the server's own user, which may have no name, to connect, and to replicate."""
    (server.directory / "pg_hba.conf").write_text(_TRUST)
    await execute(server, "select pg_reload_conf()")


@asynccontextmanager
async def replica_of(primary: PostgresServer, directory: Path) -> AsyncIterator[PostgresServer]:
    """A replica that must confirm each commit of the primary."""
    replica = Replica(directory, durable=False)
    replica._prepare()
    shutil.rmtree(replica.data)
    command = [str(binaries() / "pg_basebackup"), "-h", str(primary.sockets), "-U", SUPERUSER, "-R", "-c", "fast"]
    await trust(primary)
    user = replica.child.command.user
    shown = directory / "copied"
    shown.mkdir(mode=0o700)
    if user is not None:
        os.chown(shown, user, user)
    done = postgres_user.run_as(user, [*command, "-D", str(shown / "data")], {"LC_ALL": "C.UTF-8"})
    assert done.returncode == 0, done.stderr
    (shown / "data").rename(replica.data)
    async with replica:
        await execute(primary, "alter system set synchronous_standby_names = '*'", "select pg_reload_conf()")
        yield replica


def freeze(server: PostgresServer) -> list[int]:
    """Stop all its processes (SIGSTOP), like a machine that no longer responds; returns them."""
    assert server.child.pid is not None
    os.kill(server.child.pid, signal.SIGSTOP)
    children = Path(f"/proc/{server.child.pid}/task/{server.child.pid}/children").read_text().split()
    for child in children:
        os.kill(int(child), signal.SIGSTOP)
    return [server.child.pid, *map(int, children)]


@asynccontextmanager
async def pooler(server: PostgresServer, directory: Path) -> AsyncIterator[str]:
    """PgBouncer in transaction mode; yields its options for URLs."""
    await trust(server)
    root, user = unpacked("pgbouncer", "libevent-2.1-7", "libc-ares2"), server.child.command.user
    directory.mkdir()
    (directory / "pgbouncer.ini").write_text(_POOLER.format(sockets=server.sockets, port=POOLER_PORT, user=SUPERUSER))
    if user is not None:
        grant_traversal(root / "usr" / "sbin", user)
        grant_traversal(directory, user)
    command = ChildCommand(
        arguments=[str(root / "usr/sbin/pgbouncer"), str(directory / "pgbouncer.ini")],
        log=directory / "pgbouncer.log",
        environment={"LD_LIBRARY_PATH": str(root / "usr/lib/x86_64-linux-gnu")},
        directory=Path("/"),
        user=user,
        group=server.child.command.group,
    )
    child = ChildProcess(command)
    child.start()
    try:
        await child.until((server.sockets / f".s.PGSQL.{POOLER_PORT}").exists, PATIENCE, "pgbouncer")
        yield f"port={POOLER_PORT}"
    finally:
        await child.stop(grace=PATIENCE, number=signal.SIGINT)
        await asyncio.sleep(0)
