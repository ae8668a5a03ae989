"""Access to the local database: the user that started it has it, and every other user of the host is refused."""

import asyncio
import os
import pwd
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import asyncpg
import pytest

from sandherd.postgres_uids import RESERVED
from sandherd.stack import postgres_user
from sandherd.stack.directory_access import change_owner
from sandherd.stack.postgres import PostgresServer
from tests.live_files import owners_below

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
NOBODY_UID = 65534
STRANGER = 48_613
"""A user id without an entry, like that of a sandbox's user."""

ATTACK = """
import asyncio, encodings.idna, getpass, os, pwd, ssl, sys, asyncpg
os.setgroups([])
os.setresgid(int(sys.argv[3]), int(sys.argv[3]), int(sys.argv[3]))
os.setresuid(int(sys.argv[3]), int(sys.argv[3]), int(sys.argv[3]))
async def main():
    host, role = sys.argv[1:3]
    connection = await asyncpg.connect(host=host, user=role, database="postgres", password="x", timeout=120)
    print(await connection.fetchval("select 'IN as ' || current_user"))
asyncio.run(main())
"""


async def attack(server: PostgresServer, uid: int, role: str = "postgres") -> str:
    """The reply to a process of this user id that connects to the socket; `IN as …` if it is accepted."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        ATTACK,
        str(server.sockets),
        role,
        str(uid),
        cwd="/",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    return output.decode().strip().splitlines()[-1]


def laid_open(server: PostgresServer) -> None:
    """Remove every mode that protects the socket: only the server's own authentication is left."""
    for path in (server.sockets, *server.sockets.iterdir()):
        path.chmod(0o777)


@root_only
async def test_only_the_starting_user_has_access(own_directory: Path) -> None:
    """The server has its own user and only a socket; it refuses every user of the host except root.

    The folder and the server refuse `nobody`, a user without an entry, and the server's own user. Root reads the
    history as its owner, and as a reading role that it created.
    """
    async with PostgresServer(own_directory / "pg", durable=False) as server:
        listens_on_the_socket_only(server)
        has_its_own_user(server)
        await root_may_be_any_role(server)
        for uid in (NOBODY_UID, STRANGER):
            assert "PermissionError" in await attack(server, uid)
        laid_open(server)
        for uid in (NOBODY_UID, STRANGER, RESERVED):
            for role in ("postgres", "root", "nobody"):
                answer = await attack(server, uid, role)
                assert "IN as" not in answer
                assert "authentication failed" in answer or "could not look up" in answer, answer


async def root_may_be_any_role(server: PostgresServer) -> None:
    assert await attack(server, 0) == "IN as postgres"
    connection = await asyncpg.connect(server.url("postgres"))
    await connection.execute("create role reader login")
    await connection.close()
    assert await attack(server, 0, "reader") == "IN as reader"


def opened_by(pid: int) -> Iterator[str]:
    """The targets of a process's descriptors; it may close some of them meanwhile."""
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            yield str(entry.readlink())


def listens_on_the_socket_only(server: PostgresServer) -> None:
    """Check that no TCP port of any address is open."""
    inodes = {link.removeprefix("socket:[").removesuffix("]") for link in opened_by(server.child.pid)}
    for table in ("tcp", "tcp6", "udp", "udp6"):
        rows = Path(f"/proc/{server.child.pid}/net/{table}").read_text().splitlines()[1:]
        assert not inodes & {row.split()[9] for row in rows}


def has_its_own_user(server: PostgresServer) -> None:
    """Check that every process and file has the reserved id, which no passwd entry and no other process has."""
    owner = postgres_user.server_uid()
    assert owner not in {0, NOBODY_UID, None}
    status = Path(f"/proc/{server.child.pid}/status").read_text()
    assert f"Uid:\t{owner}\t{owner}\t{owner}\t{owner}" in status
    assert "Groups:\t \n" in status or "Groups:\t\n" in status
    assert owners_below(server.data) == {owner}
    assert stat.S_IMODE(server.data.stat().st_mode) == 0o700
    rules = (server.directory / "pg_hba.conf").stat()
    assert (rules.st_uid, stat.S_IMODE(rules.st_mode)) == (0, 0o644)


@root_only
async def test_database_of_the_version_before_is_migrated(own_directory: Path) -> None:
    """Files of `nobody` with `trust` become files of the reserved user with `peer`, with all committed data."""
    server = PostgresServer(own_directory / "pg", durable=False)
    async with server:
        await server.create_database("kept")
    for path in (server.data, server.sockets, *server.data.rglob("*")):
        os.chown(path, NOBODY_UID, NOBODY_UID)
    (server.data / "pg_hba.conf").write_text("local all all trust\n")
    (server.sockets / ".s.PGSQL.5432").write_text("laid here by nobody")
    os.chown(server.sockets / ".s.PGSQL.5432", NOBODY_UID, NOBODY_UID)
    async with PostgresServer(own_directory / "pg", durable=False) as later:
        connection = await asyncpg.connect(later.url("kept"))
        assert await connection.fetchval("select current_user") == "postgres"
        await connection.close()
        laid_open(later)
        assert "IN as" not in await attack(later, NOBODY_UID)
        assert owners_below(later.data) == {postgres_user.server_uid()}


@root_only
def test_migration_follows_no_link_and_refuses_foreign_files(own_directory: Path) -> None:
    """The target of a link by `nobody` to a file of root stays root's; a hard link to one is refused."""
    secret = own_directory / "shadow"
    secret.write_text("root's")
    data = own_directory / "data"
    data.mkdir()
    os.chown(data, NOBODY_UID, NOBODY_UID)
    (data / "link").symlink_to(secret)
    os.chown(data / "link", NOBODY_UID, NOBODY_UID, follow_symlinks=False)
    change_owner(data, STRANGER, frozenset({NOBODY_UID}))
    assert secret.stat().st_uid == 0
    assert (data / "link").lstat().st_uid == STRANGER
    other = own_directory / "other"
    other.write_text("of somebody else")
    os.chown(other, 1234, 1234)
    (data / "hard").hardlink_to(other)
    os.chown(data, NOBODY_UID, NOBODY_UID)
    with pytest.raises(PermissionError, match="belongs to user id 1234"):
        change_owner(data, STRANGER, frozenset({NOBODY_UID, STRANGER}))
    assert other.stat().st_uid == 1234


@root_only
async def test_database_of_an_ordinary_user_accepts_only_that_user(own_directory: Path) -> None:
    """A database started by `nobody` runs as `nobody`, and accepts neither another user nor root by name."""
    owner = pwd.getpwuid(NOBODY_UID)
    own_directory.chmod(0o755)
    place = own_directory / "of-nobody"
    place.mkdir()
    os.chown(place, NOBODY_UID, owner.pw_gid)
    program = (
        "import asyncio, encodings.idna, getpass, os, pathlib, pwd, sys\n"
        "from sandherd.stack.postgres import PostgresServer, binaries\n"
        "binaries()\n"
        "os.setgroups([]); os.setresgid(*[int(sys.argv[3])] * 3); os.setresuid(*[int(sys.argv[2])] * 3)\n"
        "async def main():\n"
        "    async with PostgresServer(pathlib.Path(sys.argv[1]), durable=False):\n"
        "        print('ready', flush=True)\n"
        "        sys.stdin.read()\n"
        "asyncio.run(main())\n"
    )
    started = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-c",
        program,
        str(place / "pg"),
        str(NOBODY_UID),
        str(owner.pw_gid),
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert started.stdout is not None
    try:
        assert await started.stdout.readline() == b"ready\n"
        server = PostgresServer(place / "pg")
        laid_open(server)
        (place / "pg").chmod(0o755)
        assert await attack(server, NOBODY_UID) == "IN as postgres"
        for uid in (STRANGER, 0):
            assert "IN as" not in await attack(server, uid)
    finally:
        await started.communicate(b"")
