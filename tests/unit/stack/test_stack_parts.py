"""The stack's decisions: when to start again, what a service is told, what is written down, when a log is turned."""

import asyncio
import os
import signal
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandherd.bus.together import end as end_tasks
from sandherd.contracts.subjects import Principal
from sandherd.stack.access import let_enter, let_read
from sandherd.stack.child import Child, Command
from sandherd.stack.control import phase_of
from sandherd.stack.home import Home, Phase, ProcessRecord, StackRecord, ourselves, read_record, record_of, write_record
from sandherd.stack.keeping import LONGEST_WAIT, Keeper, Part, wait_before_start
from sandherd.stack.leftovers import end_leftovers
from sandherd.stack.looking import PartStatus
from sandherd.stack.nats import quiet_port
from sandherd.stack.programs import Place, environment_of
from sandherd.stack.readiness import ask_ready
from sandherd.stack.rotation import rotate
from sandherd.stack.sandboxes import end_sandboxes, ending_seconds
from sandherd.stack.stack import Stack

PLACE = Place(
    home=Path("/home/of/stack"),
    nats_url="nats://127.0.0.1:1",
    database_url="postgresql://postgres@/sandherd?host=/run",
    credentials={service.value: Path(f"/creds/{service}.creds") for service in Principal},
    identity=Path("/identity/spawner"),
)


async def test_a_part_that_has_just_ended_is_still_a_part(tmp_path: Path) -> None:
    """Between its end and its next start it is written down all the same: a stack without it is not ready."""
    stack = Stack(tmp_path)
    stack.home.make()
    child = Child(Command(arguments=["/bin/true"], log=tmp_path / "log"))
    child.start()
    await child.gone()
    stack._keepers["monitor"] = Keeper("monitor", cast("Part", SimpleNamespace(child=child)))
    stack._keeping = [asyncio.create_task(asyncio.sleep(60))]  # for as long as the test looks
    try:
        written = stack.processes()
    finally:
        await end_tasks(stack._keeping)
    assert not written["monitor"].alive


async def test_a_service_that_ends_while_it_is_asked_is_not_ready() -> None:
    """It closes the connection without a word, or with half of one."""
    for said in (b"", b"HTTP/1.1", b"HTTP/1.1 2"):

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, said: bytes = said) -> None:
            writer.write(said)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            ready, _ = await ask_ready(f"http://127.0.0.1:{port}")
        assert not ready, said


def test_a_brokers_port_is_none_that_connections_are_given() -> None:
    """While it is started again nobody's connection can take it, by chance, for as long as that lives."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {quiet_port() for _ in range(20)}
    assert all(0 < port < first for port in ports), (ports, first, last)
    assert len(ports) > 1


@given(st.integers(0, 100))
def test_the_wait_before_a_start_grows_to_a_bound(failures: int) -> None:
    """A process that dies once is started again at once; one that keeps dying, ever later, but always again."""
    assert wait_before_start(0) == 0
    assert wait_before_start(failures) <= wait_before_start(failures + 1) <= LONGEST_WAIT


def test_a_service_is_told_its_own_credential_and_the_callers_settings() -> None:
    """What the caller set for another broker gives way to this stack's; everything else reaches the service."""
    outer = {"NATS_URL": "nats://elsewhere", "SANDHERD_HTTP_PORT": "80", "SANDHERD_MAX_SANDBOXES": "3", "PATH": "/bin"}
    told = environment_of(Principal.MONITOR, PLACE, outer)
    assert told == {
        "PATH": "/bin",
        "SANDHERD_MAX_SANDBOXES": "3",
        "NATS_URL": PLACE.nats_url,
        "DATABASE_URL": PLACE.database_url,
        "SANDHERD_CREDENTIALS": "/creds/monitor.creds",
        "SANDHERD_HOME": "/home/of/stack",
    }


def test_only_the_spawner_is_told_where_the_keys_are() -> None:
    """Not even the caller's own variable brings them to another service."""
    outer = {"SANDHERD_IDENTITY_DIR": "/elsewhere"}
    told = {service: environment_of(service, PLACE, outer) for service in Principal}
    assert {service for service in told if "SANDHERD_IDENTITY_DIR" in told[service]} == {Principal.SPAWNER}
    assert told[Principal.SPAWNER]["SANDHERD_IDENTITY_DIR"] == "/identity/spawner"


def test_what_is_written_down_is_read_again(tmp_path: Path) -> None:
    """The record survives as it was; a torn or missing one reads as none."""
    home = Home(tmp_path)
    assert read_record(home) is None
    record = StackRecord(
        phase=Phase.READY, supervisor=ourselves(), processes={"nats": ourselves()}, nats_url="nats://x"
    )
    write_record(home, record)
    assert read_record(home) == record
    home.state.write_text(home.state.read_text()[:20])
    assert read_record(home) is None


async def test_a_stranger_with_the_number_of_a_leftover_is_not_touched(tmp_path: Path) -> None:
    """A process that has the same id but started at another time is somebody else's and lives on."""
    home, stranger = Home(tmp_path), subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220  # it returns at once
    try:
        old = ProcessRecord(pid=stranger.pid, mark="another start")
        write_record(home, StackRecord(phase=Phase.READY, supervisor=old, processes={"nats": old}))
        assert await end_leftovers(home) == []
        assert stranger.poll() is None
        real = record_of(stranger.pid)
        write_record(home, StackRecord(phase=Phase.READY, supervisor=old, processes={"nats": real}))
        assert await end_leftovers(home) == ["nats"]
        assert stranger.wait() == -signal.SIGTERM
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(("program", "gone"), [("exit 0", True), ("exit 1", False), (None, False)])
async def test_what_ends_sandboxes_is_run_only_if_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, gone: bool
) -> None:
    """Or may be, elsewhere. It is told the home; if it fails, or is not installed, sandboxes may still run."""
    home, told = Home(tmp_path), tmp_path / "told"
    home.make()
    script = tmp_path / "sandherd-spawner-end"
    if program is not None:
        script.write_text(f'#!/bin/sh\necho "$SANDHERD_HOME" >{told}\n{program}\n')
        script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # an active environment of this project has the program
    outer = {"PATH": "/usr/bin:/bin"}
    assert await end_sandboxes(home, outer)
    assert not told.exists()
    assert await end_sandboxes(home, outer | {"SANDHERD_RUNTIME": "docker"}) is gone
    assert told.exists() is (program is not None)
    told.unlink(missing_ok=True)
    (home.sandboxes / "sbx-one").mkdir()
    assert await end_sandboxes(home, outer) is gone
    assert told.exists() is (program is not None)
    assert program is None or told.read_text().strip() == str(tmp_path)


def test_ending_sandboxes_may_take_as_long_as_their_grace() -> None:
    """`down` waits for that, and kills no supervisor that still waits for workers."""
    assert ending_seconds({"SANDHERD_STOP_GRACE": "100"}) > 100
    assert ending_seconds({"SANDHERD_STOP_GRACE": "long"}) > 0


def test_a_process_that_only_waits_to_be_reaped_does_not_count_as_alive() -> None:
    """A zombie has ended, whoever forgets to ask for its status."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not record_of(process.pid).alive
    process.wait()


def test_a_long_log_is_turned_and_its_writer_goes_on(tmp_path: Path) -> None:
    """The last three are kept, short ones are left alone, and a writer that has it open writes to the same file."""
    log, short = tmp_path / "a.log", tmp_path / "b.log"
    short.write_text("short")
    with log.open("ab", buffering=0) as writer:
        for number in range(5):
            writer.write(f"{number}".encode() * 100)
            assert rotate(tmp_path, most=50, kept=3) == [log]
            assert log.stat().st_size == 0
        writer.write(b"after")
    assert log.read_bytes() == b"after"
    assert [tmp_path.joinpath(f"a.log.{n}").read_bytes()[:1] for n in (1, 2, 3)] == [b"4", b"3", b"2"]
    assert not tmp_path.joinpath("a.log.4").exists()
    assert short.read_text() == "short"


def test_a_closed_installation_is_opened_for_reading_and_nothing_more(tmp_path: Path) -> None:
    """Programs may be run and files read by others afterwards; nobody may write, and links are not followed."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir(mode=0o700)
    outside.touch(mode=0o600)
    program, file = tree / "program", tree / "file"
    program.touch(mode=0o700)
    file.touch(mode=0o600)
    (tree / "link").symlink_to(outside)
    let_read(tree)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tree, program, file)] == [0o705, 0o705, 0o604]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600


def test_the_way_to_a_directory_is_opened_for_passing_only(tmp_path: Path) -> None:
    """The user of the database may pass through the directories above, and others may not list them."""
    home = tmp_path / "home"
    (home / "postgres" / "data").mkdir(parents=True)
    home.chmod(0o700)
    let_enter(home / "postgres" / "data", 65534)
    assert stat.S_IMODE(home.stat().st_mode) == 0o701


@pytest.mark.parametrize(
    ("written", "supervised", "running", "ready", "found"),
    [
        (Phase.READY, True, True, True, Phase.READY),
        (Phase.READY, True, True, False, Phase.NOT_READY),
        (Phase.READY, True, False, False, Phase.NOT_READY),
        (Phase.STARTING, True, True, False, Phase.STARTING),
        (Phase.READY, False, True, True, Phase.UNSUPERVISED),
        (Phase.STOPPING, False, True, False, Phase.UNSUPERVISED),
        (Phase.READY, False, False, False, Phase.STOPPED),
        (Phase.FAILED, False, False, False, Phase.FAILED),
    ],
)
def test_the_headline_says_what_the_parts_are(
    written: Phase, supervised: bool, running: bool, ready: bool, found: Phase
) -> None:
    """Ready only while every part is, stopped only if none runs, and unsupervised if they run by themselves."""
    well = PartStatus(name="nats", pid=1, running=supervised or running, ready=supervised or running)
    parts = [well, PartStatus(name="monitor", pid=2, running=running, ready=ready)]
    assert phase_of(written, parts, supervised=supervised) is found
