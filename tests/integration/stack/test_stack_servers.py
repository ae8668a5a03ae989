"""The embedded broker and database are started, killed and restarted separately, with all their data."""

import asyncio
import stat
import sys
from pathlib import Path

import asyncpg
import pytest

from sandherd.contracts.subjects import Principal
from sandherd.process_signals import ended
from sandherd.stack.broker import Broker
from sandherd.stack.child_process import ChildCommand, ChildFailedError, ChildProcess
from sandherd.stack.postgres import PostgresServer
from sandherd.stack.postgres_socket import recorded_directory, socket_directory
from tests.patience import PATIENCE

EVENT = "sandherd.v1.event.p1.fleet.monitor.conductor_reported"


async def test_killed_broker_restarts_on_its_port_with_all_acknowledged(herd: Broker) -> None:
    """After SIGKILL the same connection continues, and every acknowledged event is in the stream."""
    async with herd.bus(Principal.MONITOR) as bus:
        for number in range(50):
            await bus.publish(EVENT, b"{}", msg_id=str(number))
        url = herd.url
        await herd.kill()
        await herd.restart()
        assert herd.url == url
        await bus.publish_stored(EVENT, b"{}", msg_id="50")
        assert (await bus.js.stream_info("EVENTS")).state.messages == 51


async def test_killed_database_restarts_with_all_committed(own_directory: Path) -> None:
    """After a SIGKILL of the server its next start has every committed row, as the stack's database syncs to disk.

    The path of its home is too long for a socket (at most 107 bytes), which is in a short folder that no other user may
    enter.
    """
    deep = own_directory.joinpath(*["a-rather-long-directory-name"] * 5) / "pg"
    async with PostgresServer(deep) as server:
        assert len(str(server.sockets)) < 60
        assert stat.S_IMODE(server.sockets.stat().st_mode) == 0o700
        assert server.sockets == socket_directory(deep) == recorded_directory(server.url("postgres"))
        await server.create_database("kept")
        connection = await asyncpg.connect(server.url("kept"))
        names = ("fsync", "synchronous_commit", "listen_addresses")
        assert [await connection.fetchval(f"show {name}") for name in names] == ["on", "on", ""]
        await connection.execute("create table t as select generate_series(1, 1000) as n")
        await server.kill()
        connection.terminate()
        await server.restart()
        connection = await asyncpg.connect(server.url("kept"))
        assert await connection.fetchval("select count(*) from t") == 1000
        await connection.close()
        await server.create_database("kept")  # a second time it exists already
    server.sockets.rmdir()


async def test_foreign_directory_is_not_used_for_the_socket(own_directory: Path) -> None:
    """A link in the place of the socket's folder is refused, not followed."""
    directory = own_directory / "pg"
    directory.mkdir()
    (directory / "run").symlink_to(own_directory)
    with pytest.raises((PermissionError, FileExistsError)):
        await PostgresServer(directory, durable=False).start()


async def test_broker_that_cannot_start_states_why(tmp_path: Path) -> None:
    """A port in use is an error with the server's message, instead of an endless wait."""
    async with Broker(tmp_path / "one") as first:
        second = Broker(tmp_path / "two", port=first.nats.port)
        with pytest.raises(ChildFailedError, match="address already in use"):
            await second.start()


async def test_a_process_is_waited_for_without_polling(tmp_path: Path) -> None:
    """The end of a process is noticed, whichever process is its parent; one that never existed has ended."""
    child = ChildProcess(ChildCommand(arguments=["sleep", "60"], log=tmp_path / "log"))
    child.start()
    await child.stop(grace=PATIENCE)
    await ended(child.pid)
    assert child.status == -15
    assert not Path(f"/proc/{child.pid}").exists()
    with pytest.raises(ProcessLookupError):
        ChildProcess(child.command).pid  # noqa: B018  # reading it is the test


async def test_a_child_that_ignores_us_is_killed(tmp_path: Path) -> None:
    """A child that ignores SIGTERM is killed after the grace."""
    child = ChildProcess(
        ChildCommand(arguments=["sh", "-c", "trap '' TERM; echo deaf; exec sleep 60"], log=tmp_path / "log")
    )
    child.start()
    await child.until(lambda: "deaf" in child.last_lines(), PATIENCE, "sh")
    await child.stop(grace=0.05)
    assert child.status == -9


async def test_children_end_with_their_starter(tmp_path: Path) -> None:
    """The kernel ends a linked process when its starter is killed."""
    script = (
        "import sys, pathlib\n"
        "from sandherd.stack.child_process import ChildCommand, ChildProcess\n"
        "child = ChildProcess(ChildCommand(arguments=['sleep', '60'], log=pathlib.Path(sys.argv[1])))\n"
        "child.start()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        script,
        str(tmp_path / "child.log"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    process.kill()
    await process.wait()
    await ended(pid)
