"""The stack as a user starts it: a supervisor restarts every part, and leaves nothing behind."""

import asyncio
import json
import os
import shutil
import signal
import stat
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from sandherd.bus.connection import Bus, ConnectionIdentity
from sandherd.bus.identity import bearer
from sandherd.stack import StackFailedError, StackPhase, StackStatus, down, status, up
from sandherd.stack.home import Home, read_record, record_of
from tests.patience import PATIENCE

NAMES = ("nats", "postgres", "spawner", "event-ingest", "monitor", "message-relay", "gateway")

pytestmark = [pytest.mark.faults]


async def until(condition: Callable[[], Awaitable[bool]], seconds: float = PATIENCE) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # other processes set no event here
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The home of a running stack; a test that ends it starts it again."""
    directory = Path(tempfile.mkdtemp(prefix="stack-"))
    try:
        asyncio.run(up(directory))
        yield directory
    finally:
        asyncio.run(down(directory))
        shutil.rmtree(directory, ignore_errors=True)


def pids(standing: StackStatus) -> dict[str, int | None]:
    return {part.name: part.pid for part in standing.parts}


async def test_up_makes_every_part_ready_and_a_second_up_finds_it_running(home: Path) -> None:
    """All six processes are ready, and a second `up` starts nothing."""

    async def is_ready() -> bool:
        return (await status(home)).ready

    await until(is_ready)  # a part whose reply is late is not ready at that moment
    first = await status(home)
    assert tuple(pids(first)) == NAMES
    second = await up(home)
    assert (second.supervisor_pid, pids(second)) == (first.supervisor_pid, pids(first))


async def test_clients_find_the_stack_by_its_context(home: Path) -> None:
    """`context.json` names the broker, the database, each service's address and every credential."""
    context = json.loads((home / "context.json").read_text())
    assert set(context["services"]) == set(NAMES[2:])
    credentials = Path(context["creds"]["client-default"])
    who = bearer(credentials.read_text())
    identity = ConnectionIdentity.file(credentials)
    async with Bus.open(
        context["nats_url"], name=who.name, identity=identity, inbox=who.inbox, connect_timeout=PATIENCE
    ) as bus:
        assert bus.connected


async def test_secrets_are_private_and_in_no_command_line(home: Path) -> None:
    """Keys and credentials are 0600 in 0700 directories; no process shows one, and only the spawner may sign."""
    for directory in (home / "identity", home / "creds"):
        for path in (directory, *directory.rglob("*")):
            assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    record = read_record(Home(home))
    assert record is not None
    for name, process in record.processes.items():
        proc = Path("/proc") / str(process.pid)
        assert b"SEED" not in proc.joinpath("cmdline").read_bytes()
        assert (b"SANDHERD_IDENTITY_DIR=" in proc.joinpath("environ").read_bytes()) == (name == "spawner")


@pytest.mark.parametrize("name", NAMES)
async def test_killed_process_is_restarted(home: Path, name: str) -> None:
    """A part that was killed by SIGKILL returns, the others keep running, and the stack is ready again."""
    before = await up(home)
    old = pids(before)
    pid = old[name]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def is_back() -> bool:
        now = await status(home)
        assert tuple(pids(now)) == NAMES, "a part that is away is one that is not ready, not one that is not there"
        return now.ready and pids(now)[name] not in {None, pid}

    await until(is_back)
    after = pids(await status(home))
    assert {other for other in NAMES if after[other] != old[other]} == {name}


async def test_killed_supervisor_leaves_nothing_after_the_next_up(home: Path) -> None:
    """The next supervisor ends the killed one's processes, and starts all again on the same port."""
    before = await up(home)
    record = read_record(Home(home))
    assert record is not None
    assert before.supervisor_pid is not None
    os.kill(before.supervisor_pid, signal.SIGKILL)
    await until(lambda: _answer(not record.supervisor.alive))
    orphaned = await status(home)
    assert orphaned.phase is StackPhase.UNSUPERVISED
    assert not orphaned.ready
    assert all(part.running for part in orphaned.parts)
    after = await up(home)
    assert after.ready
    assert not any(process.alive for process in record.processes.values())
    assert after.nats_url == before.nats_url


async def test_down_ends_everything_and_may_be_repeated(home: Path) -> None:
    """No process is left, a second `down` has nothing to do, and `status` is stopped."""
    await up(home)
    record = read_record(Home(home))
    assert record is not None
    ended = await down(home)
    assert set(ended.names) == {*NAMES, "supervisor"}
    assert not any(process.alive for process in record.processes.values())
    assert not (await down(home)).was_running
    assert (await status(home)).phase is StackPhase.STOPPED


async def test_down_ends_what_a_killed_supervisor_left(home: Path) -> None:
    """Without a supervisor `down` itself ends the orphans."""
    standing = await up(home)
    record = read_record(Home(home))
    assert record is not None
    assert standing.supervisor_pid is not None
    os.kill(standing.supervisor_pid, signal.SIGKILL)
    await until(lambda: _answer(not record.supervisor.alive))
    assert set((await down(home)).names) == set(NAMES)
    assert not any(process.alive for process in record.processes.values())


async def test_two_concurrent_ups_start_one_stack(home: Path) -> None:
    """The second `up` finds the lock held, and waits for the first one's stack."""
    await down(home)
    first, second = await asyncio.gather(up(home), up(home))
    assert first.ready
    assert pids(first) == pids(second)


async def test_invalid_setting_is_reported_before_the_start(
    own_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No service is started if a setting of `up` is invalid."""
    monkeypatch.setenv("SANDHERD_MAX_SANDBOXES", "many")
    with pytest.raises(StackFailedError, match="SANDHERD_MAX_SANDBOXES"):
        await up(own_directory / "home")
    standing = await status(own_directory / "home")
    assert (standing.phase, standing.parts) == (StackPhase.FAILED, ())


async def test_service_that_cannot_start_is_reported_and_the_rest_ended(home: Path) -> None:
    """Event-ingest refuses a newer version's history: `up` reports it, and ends what it had started."""
    standing = await up(home)
    assert standing.database_url is not None
    connection = await asyncpg.connect(standing.database_url)
    await connection.execute("insert into schema_migrations (number, name, sha256) values (9999, 'newer', 'x')")
    await connection.close()
    await down(home)
    with pytest.raises(StackFailedError, match=r"(?s)event-ingest: ended 3 times.*9999"):
        await up(home)
    standing = await status(home)
    assert standing.phase is StackPhase.FAILED
    assert not any(part.running for part in standing.parts)


async def _answer(value: bool) -> bool:
    return value


def test_process_is_distinguished_from_a_later_one_of_its_number() -> None:
    """The identity of a process has the boot time and its own start time; a process that does not run has none."""
    own = record_of(os.getpid())
    assert own.alive
    assert own == record_of(os.getpid())
    assert own.mark != record_of(1).mark
    assert not own.model_copy(update={"mark": record_of(1).mark}).alive
    assert not record_of(2**22 + 1).alive
