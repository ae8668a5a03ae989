"""The stack's decisions: restarts, environments of services, the record, and the rotation of logs."""

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

from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.subjects import Principal
from sandherd.stack.child_process import ChildCommand, ChildProcess
from sandherd.stack.control import phase_of
from sandherd.stack.directory_access import grant_read, grant_traversal
from sandherd.stack.home import (
    Home,
    ProcessRecord,
    StackPhase,
    StackRecord,
    ourselves,
    read_record,
    record_of,
    write_record,
)
from sandherd.stack.log_rotation import rotate
from sandherd.stack.nats import free_port
from sandherd.stack.process_monitor import BACKOFF, ProcessMonitor, StackPart, wait_before_start
from sandherd.stack.readiness import read_readiness
from sandherd.stack.sandbox_shutdown import end_sandboxes, ending_seconds
from sandherd.stack.service_processes import ServiceContext, environment_of
from sandherd.stack.stack import Stack
from sandherd.stack.stale_processes import end_leftovers
from sandherd.stack.start_failure import cause_in
from sandherd.stack.status import PartStatus
from sandherd.stack.supervisor import AlreadyRunningError, Supervisor, hold_lock

STORE = "SANDHERD_ARTIFACT_STORE"
PLACE = ServiceContext(
    home=Path("/home/of/stack"),
    nats_url="nats://127.0.0.1:1",
    database_url="postgresql://postgres@/sandherd?host=/run",
    credentials={service.value: Path(f"/creds/{service}.creds") for service in Principal},
    identity=Path("/identity/spawner"),
)


async def test_ended_part_is_still_listed(tmp_path: Path) -> None:
    """Between its end and its next start the part is in the record: a stack without it is not ready."""
    stack = Stack(tmp_path)
    stack.home.make()
    child = ChildProcess(ChildCommand(arguments=["/bin/true"], log=tmp_path / "log"))
    child.start()
    await child.wait_ended()
    stack._monitors["monitor"] = ProcessMonitor("monitor", cast("StackPart", SimpleNamespace(child=child)))
    stack._tasks = [asyncio.create_task(asyncio.sleep(60))]  # for as long as the test looks
    try:
        written = stack.processes()
    finally:
        await cancel_and_wait(stack._tasks)
    assert not written["monitor"].alive


async def test_service_that_closes_the_probe_is_not_ready() -> None:
    """A connection closed without a reply, or after half of one, is not ready."""
    for sent in (b"", b"HTTP/1.1", b"HTTP/1.1 2"):

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes = sent) -> None:
            writer.write(sent)
            writer.close()

        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            ready, _ = await read_readiness(f"http://127.0.0.1:{port}")
        assert not ready, sent


def test_broker_port_is_outside_the_ephemeral_range() -> None:
    """During a restart no other connection can take it by chance."""
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(20)}
    assert all(0 < port < first for port in ports), (ports, first, last)
    assert len(ports) > 1


@given(st.integers(0, 100))
def test_wait_before_a_restart_grows_to_a_bound(failures: int) -> None:
    """A process that ends once is restarted at once; one that ends again and again, ever later, but always again."""
    assert wait_before_start(0) == 0
    assert wait_before_start(failures) <= wait_before_start(failures + 1) <= BACKOFF.cap


def test_service_gets_its_credential_and_the_callers_settings() -> None:
    """The caller's settings for another broker are replaced by this stack's; all others reach the service."""
    outer = {"NATS_URL": "nats://elsewhere", "SANDHERD_HTTP_PORT": "80", "SANDHERD_MAX_SANDBOXES": "3", "PATH": "/bin"}
    variables = environment_of(Principal.MONITOR, PLACE, outer)
    assert variables == {
        "PATH": "/bin",
        "SANDHERD_MAX_SANDBOXES": "3",
        "NATS_URL": PLACE.nats_url,
        "DATABASE_URL": PLACE.database_url,
        "SANDHERD_CREDENTIALS": "/creds/monitor.creds",
        "SANDHERD_HOME": "/home/of/stack",
    }


def test_only_the_spawner_gets_the_path_of_the_keys() -> None:
    """The caller's own variable does not reach another service either."""
    outer = {"SANDHERD_IDENTITY_DIR": "/elsewhere"}
    variables = {service: environment_of(service, PLACE, outer) for service in Principal}
    assert {service for service in variables if "SANDHERD_IDENTITY_DIR" in variables[service]} == {Principal.SPAWNER}
    assert variables[Principal.SPAWNER]["SANDHERD_IDENTITY_DIR"] == "/identity/spawner"


@pytest.mark.parametrize(("chosen", "used"), [({}, "/home/of/stack/artifacts"), ({STORE: "/srv/all"}, "/srv/all")])
def test_artifact_store_of_a_home_is_used_unless_another_is_set(chosen: dict[str, str], used: str) -> None:
    """Only by event-ingest; other services get what the caller has set."""
    assert environment_of(Principal.EVENT_INGEST, PLACE, chosen)[STORE] == used
    assert environment_of(Principal.MONITOR, PLACE, chosen).get(STORE) == chosen.get(STORE)


def test_record_of_a_stack_is_written_and_read(tmp_path: Path) -> None:
    """The record is read as written; a torn or missing one is None."""
    home = Home(tmp_path)
    assert read_record(home) is None
    record = StackRecord(
        phase=StackPhase.READY, supervisor=ourselves(), processes={"nats": ourselves()}, nats_url="nats://x"
    )
    write_record(home, record)
    assert read_record(home) == record
    home.state.write_text(home.state.read_text()[:20])
    assert read_record(home) is None


async def test_supervisor_waits_until_the_holder_of_the_lock_is_recorded(tmp_path: Path) -> None:
    """Two are started at once. If one ended before the other is recorded, its `up` would report a failure."""
    home = Home(tmp_path)
    home.make()
    with hold_lock(home):
        second = asyncio.create_task(Supervisor(tmp_path).run())
        await asyncio.wait([second], timeout=0.2)
        assert not second.done()
        write_record(home, StackRecord(phase=StackPhase.STARTING, supervisor=ourselves()))
        with pytest.raises(AlreadyRunningError):
            await second


async def test_foreign_process_with_a_leftovers_pid_is_not_touched(tmp_path: Path) -> None:
    """A process of the same id that started at another time is foreign and lives on."""
    home, stranger = Home(tmp_path), subprocess.Popen(["sleep", "60"])  # noqa: ASYNC220  # it returns at once
    try:
        old = ProcessRecord(pid=stranger.pid, mark="another start")
        write_record(home, StackRecord(phase=StackPhase.READY, supervisor=old, processes={"nats": old}))
        assert await end_leftovers(home) == []
        assert stranger.poll() is None
        real = record_of(stranger.pid)
        write_record(home, StackRecord(phase=StackPhase.READY, supervisor=old, processes={"nats": real}))
        assert await end_leftovers(home) == ["nats"]
        assert stranger.wait() == -signal.SIGTERM
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize(("program", "gone"), [("exit 0", True), ("exit 1", False), (None, False)])
async def test_end_program_runs_only_if_sandboxes_may_exist(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None, gone: bool
) -> None:
    """The program gets the home; if it fails, or is not installed, sandboxes may still run."""
    home, variables = Home(tmp_path), tmp_path / "told"
    home.make()
    script = tmp_path / "sandherd-spawner-end"
    if program is not None:
        script.write_text(f'#!/bin/sh\necho "$SANDHERD_HOME" >{variables}\n{program}\n')
        script.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # an active environment of this project has the program
    outer = {"PATH": "/usr/bin:/bin"}
    assert await end_sandboxes(home, outer)
    assert not variables.exists()
    assert await end_sandboxes(home, outer | {"SANDHERD_RUNTIME": "docker"}) is gone
    assert variables.exists() is (program is not None)
    variables.unlink(missing_ok=True)
    (home.sandboxes / "sbx-one").mkdir()
    assert await end_sandboxes(home, outer) is gone
    assert variables.exists() is (program is not None)
    assert program is None or variables.read_text().strip() == str(tmp_path)


def test_ending_sandboxes_may_take_their_grace() -> None:
    """`down` waits for that, and kills no supervisor that still waits for workers."""
    assert ending_seconds({"SANDHERD_STOP_GRACE": "100"}) > 100
    assert ending_seconds({"SANDHERD_STOP_GRACE": "long"}) > 0


def test_zombie_does_not_count_as_alive() -> None:
    """A zombie has ended, even if its status was never read."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert not record_of(process.pid).alive
    process.wait()


def test_long_log_is_rotated_under_its_writer(tmp_path: Path) -> None:
    """Three rotated logs are retained, short logs are unchanged, and an open writer continues in the same file."""
    log, short = tmp_path / "a.log", tmp_path / "b.log"
    short.write_text("short")
    with log.open("ab", buffering=0) as writer:
        for number in range(5):
            writer.write(f"{number}".encode() * 100)
            assert rotate(tmp_path, max_bytes=50, max_files=3) == [log]
            assert log.stat().st_size == 0
        writer.write(b"after")
    assert log.read_bytes() == b"after"
    assert [tmp_path.joinpath(f"a.log.{n}").read_bytes()[:1] for n in (1, 2, 3)] == [b"4", b"3", b"2"]
    assert not tmp_path.joinpath("a.log.4").exists()
    assert short.read_text() == "short"


def test_private_installation_is_opened_for_reading_only(tmp_path: Path) -> None:
    """Programs may be run and files read by others afterwards; none may write, and links are not followed."""
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    tree.mkdir(mode=0o700)
    outside.touch(mode=0o600)
    program, file = tree / "program", tree / "file"
    program.touch(mode=0o700)
    file.touch(mode=0o600)
    (tree / "link").symlink_to(outside)
    grant_read(tree)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (tree, program, file)] == [0o705, 0o705, 0o604]
    assert stat.S_IMODE(outside.stat().st_mode) == 0o600


def test_parents_of_a_directory_are_opened_for_passing_only(tmp_path: Path) -> None:
    """The user of the database may pass through the directories above, and others may not list them."""
    home = tmp_path / "home"
    (home / "postgres" / "data").mkdir(parents=True)
    home.chmod(0o700)
    grant_traversal(home / "postgres" / "data", 65534)
    assert stat.S_IMODE(home.stat().st_mode) == 0o701


@pytest.mark.parametrize(
    ("written", "supervised", "running", "ready", "found"),
    [
        (StackPhase.READY, True, True, True, StackPhase.READY),
        (StackPhase.READY, True, True, False, StackPhase.NOT_READY),
        (StackPhase.READY, True, False, False, StackPhase.NOT_READY),
        (StackPhase.STARTING, True, True, False, StackPhase.STARTING),
        (StackPhase.READY, False, True, True, StackPhase.UNSUPERVISED),
        (StackPhase.STOPPING, False, True, False, StackPhase.UNSUPERVISED),
        (StackPhase.READY, False, False, False, StackPhase.STOPPED),
        (StackPhase.FAILED, False, False, False, StackPhase.FAILED),
    ],
)
def test_phase_of_a_stack_follows_its_parts(
    written: StackPhase, supervised: bool, running: bool, ready: bool, found: StackPhase
) -> None:
    """Ready only while every part is, stopped only if none runs, and unsupervised if they run by themselves."""
    well = PartStatus(name="nats", pid=1, running=supervised or running, ready=supervised or running)
    parts = [well, PartStatus(name="monitor", pid=2, running=running, ready=ready)]
    assert phase_of(written, parts, supervised=supervised) is found


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (
            '  File "registry.py", line 81\n    raise it\nspawner.errors.FailedError: there is no runtime',
            "there is no runtime",
        ),
        ("Traceback\nValueError: bad\ntwo lines", "ValueError: bad\ntwo lines"),
        ("a.BError: first\nDuring it\nc.DError: second", "second"),
        ('{"event": "an Error: in it"}\nlast', '{"event": "an Error: in it"}\nlast'),
        ("", ""),
    ],
)
def test_part_that_ends_at_its_start_is_reported_without_a_traceback(log: str, cause: str) -> None:
    """The last error is shown; a log without one as it is."""
    assert cause_in(log) == cause
