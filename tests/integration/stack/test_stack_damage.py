"""A local stack that lost something: `status` and `doctor` name it, and `up` repairs what can be repaired."""

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from sandherd.stack import StackPhase, down, status, up
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """The home of a running stack, in which one task has run."""
    directory = Path(mkdtemp(prefix="damaged-"))
    try:
        asyncio.run(up(directory))
        asyncio.run(sandherd(directory, "run", "one", "--", "true"))
        yield directory
    finally:
        asyncio.run(down(directory))
        shutil.rmtree(directory, ignore_errors=True)


async def sandherd(home: Path, *words: str) -> tuple[int, str, str]:
    environ = {"PATH": os.environ["PATH"], "SANDHERD_HOME": str(home)}
    process = await asyncio.create_subprocess_exec(preloaded_sandherd(), *words, env=environ, stdout=PIPE, stderr=PIPE)
    out, error = await process.communicate()
    return process.returncode or 0, out.decode(), error.decode()


def children(pid: int) -> list[int]:
    """The processes of a Postgres, one for each connection or job."""
    return [int(number) for number in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def until(look: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(PATIENCE):
        while not (found := await look()):
            await asyncio.sleep(0.2)
    return found


async def checks(home: Path) -> dict[str, Any]:
    _, out, error = await sandherd(home, "doctor", "-o", "json")
    assert "Traceback" not in error
    return {check["check"]: check for check in json.loads(out)}


@pytest.mark.parametrize("content", [None, "{cut"])
async def test_up_restores_the_files_of_clients(home: Path, content: str | None) -> None:
    """A deleted or damaged context, and deleted credentials of the client and a service, exist again after `up`."""
    (home / "creds" / "client-default.creds").unlink()
    (home / "creds" / "monitor.creds").unlink()
    context = home / "context.json"
    if content is None:
        context.unlink()
    else:
        context.write_text(content)
    before = await status(home)
    assert (await sandherd(home, "up"))[0] == 0
    assert (await sandherd(home, "tasks", "list"))[0] == 0
    assert (home / "creds" / "monitor.creds").exists()
    assert (await status(home)).supervisor_pid == before.supervisor_pid


async def test_credential_that_is_no_text_does_not_end_the_stack(home: Path) -> None:
    """The credential is created again when the stack repairs its files."""
    before = await status(home)
    damaged = home / "creds" / "monitor.creds"
    damaged.write_bytes(b"\xff\xfe")
    (home / "creds" / "client-default.creds").unlink()
    assert (await sandherd(home, "up"))[0] == 0
    assert damaged.read_bytes().startswith(b"-----BEGIN")
    assert (await status(home)).supervisor_pid == before.supervisor_pid


async def test_hanging_database_is_not_ready(home: Path) -> None:
    """`status` says that it does not respond; `doctor` names it and its socket, and suggests no migration."""
    standing = await up(home)
    (pid,) = [part.pid for part in standing.parts if part.name == "postgres"]
    assert pid is not None
    server = [pid, *children(pid)]
    for process in server:
        os.kill(process, signal.SIGSTOP)
    try:
        stopped = await status(home)
        (postgres,) = [part for part in stopped.parts if part.name == "postgres"]
        assert (stopped.phase, postgres.running, postgres.ready) == (StackPhase.NOT_READY, True, False)
        assert "does not respond" in postgres.detail

        async def named() -> Any:
            found = await checks(home)
            names = ("database", "migrations")
            return found if all(found.get(name, {}).get("state") == "wrong" for name in names) else None

        found = await until(named)
        assert found["database"]["found"].startswith("database sandherd at /")
        assert {found[name]["remedy"] for name in ("database", "migrations")} == {found["database"]["remedy"]}
        assert "Postgres" in found["database"]["remedy"]
    finally:
        for process in reversed(server):
            os.kill(process, signal.SIGCONT)
    assert (await up(home)).ready


async def test_processes_that_do_not_run_have_a_row_and_the_database_is_unknown(home: Path) -> None:
    """Supervisor, Postgres and event-ingest, which have ended, are named; the remedy `up` recovers them."""
    standing = await up(home)
    ended = {part.name: part.pid for part in standing.parts if part.name in {"postgres", "event-ingest"}}
    for pid in (standing.supervisor_pid, ended["event-ingest"]):
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert ended["postgres"] is not None
    os.kill(ended["postgres"], signal.SIGINT)  # ends it at once, and removes its lock

    async def named() -> Any:
        found = await checks(home)
        rows = {name for name in found if name.startswith("process ")}
        return found if rows == {"process supervisor", "process postgres", "process event-ingest"} else None

    found = await until(named)
    assert {(found[f"process {name}"]["state"], found[f"process {name}"]["found"]) for name in ended} == {
        ("wrong", "not running")
    }
    assert "`sandherd up`" in found["process supervisor"]["remedy"]
    assert found["database"]["state"] == "unknown"
    assert not any("kubectl" in (check["remedy"] or "") for check in found.values())
    assert (await up(home)).ready

    async def well() -> Any:
        found = await checks(home)
        return found if found["database"]["state"] == "ok" else None

    assert (await until(well))["database"]["found"].startswith("database sandherd at /")


async def test_missing_keys_are_named_and_not_replaced(home: Path) -> None:
    """They are named while the stack runs, and after `down`; with the folder in its place again, all is as before."""
    await up(home)
    identity = home / "identity"
    identity.rename(home / "kept-identity")
    try:
        for stopped in (False, True):
            if stopped:
                await sandherd(home, "down")
            for words in (("up",), ("status",)):
                code, _, error = await sandherd(home, *words)
                assert (code, f"{identity} is missing" in error) == (1, True)
            assert (await checks(home))["identity"]["state"] == "wrong"
            assert not identity.exists()
    finally:
        (home / "kept-identity").rename(identity)
    assert (await up(home)).ready
    assert (await sandherd(home, "tasks", "list", "--past"))[0] == 0


async def test_audit_of_an_unknown_name_is_an_error(home: Path) -> None:
    """An audit of zeros would mean that everything is stored."""
    code, _, error = await sandherd(home, "audit", "nope")
    assert code == 1
    assert "no events are stored of sandbox nope" in error


async def test_deleted_data_of_the_broker_is_named(home: Path) -> None:
    """After `down`, the loss of the broker's files, and `up`, doctor names the loss and the remedy."""
    await down(home)
    shutil.rmtree(home / "nats" / "data")
    await up(home)

    async def named() -> Any:
        return (await checks(home)).get("broker data")

    check = await until(named)
    assert check["state"] == "wrong"
    assert "the broker's data was deleted or replaced" in check["found"]
    assert "backup" in check["remedy"]
    assert "--past" in check["remedy"]
