"""`sandherd backup` and `restore` of a local stack with the command alone, as a new user has it."""

import asyncio
import json
import os
import shutil
import signal
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from sandherd.process_signals import ended
from sandherd.stack import down, maintenance
from sandherd.stack import status as stack_status
from sandherd.stack.cluster import size_of
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for homes and a backup; the stacks in the homes are ended."""
    found = Path(mkdtemp(prefix="kept-"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        for name in ("first", "second", "third"):
            asyncio.run(down(found / name))
        shutil.rmtree(found, ignore_errors=True)


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "SANDHERD_HOME": str(home)}


async def sandherd(home: Path, *words: str, status: int | None = 0, **settings: str) -> str:
    """Run a command; returns its output, of standard error if `status` is not 0. None accepts any status."""
    environ = environment(home) | settings
    process = await asyncio.create_subprocess_exec(preloaded_sandherd(), *words, env=environ, stdout=PIPE, stderr=PIPE)
    out, error = await process.communicate()
    assert status in {process.returncode, None}, (words, out.decode(), error.decode())
    return (error if status else out).decode()


def settings_of(home: Path) -> dict[str, str]:
    found = maintenance.environment(home)
    assert found is not None
    return found


async def tasks(home: Path) -> dict[str, Any]:
    found = json.loads(await sandherd(home, "tasks", "list", "-o", "json"))["tasks"]
    return {task["text"]: task for task in found}


async def until_state(home: Path, text: str, state: str) -> dict[str, Any]:
    async with asyncio.timeout(PATIENCE):
        while (await tasks(home)).get(text, {}).get("state") != state:
            await asyncio.sleep(0.3)
    found: dict[str, Any] = (await tasks(home))[text]
    return found


async def test_a_stack_is_backed_up_while_an_agent_works_and_restored_to_a_new_home(place: Path) -> None:
    """The folder has keys, streams and history. The agent continues in its sandbox; the new home has everything.

    An existing folder, a running stack or another herd is an error of one line, and nothing is changed. A failed
    restoration is repeated as a whole: a partly restored history would look complete.
    """
    first, second, saved = place / "first", place / "second", place / "monday"
    await sandherd(first, "up")
    await store_an_artifact(first)
    script = "while [ ! -e go ]; do sleep 0.2; done"
    await sandherd(first, "run", "at work", "--no-follow", "--", "sh", "-c", script)
    at_work = await until_state(first, "at work", "running")
    rows = json.loads(await sandherd(first, "backup", str(saved), "-o", "json"))
    assert {"stream": "history", "state": "saved"} in rows
    assert [path for path in (saved, *saved.rglob("*")) if path.stat().st_mode & 0o077 and path != saved] == []
    assert "already exists" in await sandherd(first, "backup", str(saved), status=1)
    assert "run `sandherd down` first" in await sandherd(first, "restore", str(saved), status=1)
    still = (await tasks(first))["at work"]
    assert (still["state"], still["attempt"], still["sandbox"]) == ("running", 1, at_work["sandbox"])
    # The agent ends with it, possibly before the reply: then the sandbox is ending.
    await sandherd(first, "exec", at_work["sandbox"], "--", "touch", "go", status=None)
    assert (await until_state(first, "at work", "completed"))["attempt"] == 1
    await sandherd(first, "down")
    assert "differ from the backup" in await sandherd(first, "restore", str(saved), status=1)
    await fail_to_restore(second, saved)
    rows = json.loads(await sandherd(second, "restore", str(saved), "-o", "json"))
    assert {"stream": "history", "state": "restored"} in rows
    assert "as it was" in await sandherd(second, "restore", str(saved))
    assert artifacts(second) == artifacts(saved) != {}
    await sandherd(second, "up")
    assert (await tasks(second))["done"]["state"] == "completed"
    async with asyncio.timeout(PATIENCE):
        while (await tasks(second))["at work"]["attempt"] != 2:  # its sandbox is not in this home
            await asyncio.sleep(0.3)
    await sandherd(place / "none", "backup", str(place / "other"), status=1)
    assert not (place / "other").exists()


async def store_an_artifact(home: Path) -> None:
    """Run the task `done`, and wait until its work tree is in the artifact store."""
    await sandherd(home, "run", "done", "--keep-work", "--", "sh", "-c", "echo result >out.txt")
    async with asyncio.timeout(PATIENCE):
        while not artifacts(home):
            await asyncio.sleep(0.3)


def artifacts(folder: Path) -> dict[str, bytes]:
    """The contents of the artifact store."""
    found = (folder / "artifacts").rglob("*")
    return {path.name: path.read_bytes() for path in found if path.is_file() and path.suffix != ".partial"}


async def fail_to_restore(home: Path, saved: Path) -> None:
    """Restore a backup while a part of its history is missing."""
    dump = (saved / "history.dump").read_bytes()
    (saved / "history.dump").write_bytes(dump[: len(dump) * 3 // 4])
    assert "pg_restore failed" in await sandherd(home, "restore", str(saved), status=1)
    (saved / "history.dump").write_bytes(dump)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_an_interrupted_backup_leaves_the_stack_running_and_no_folder(
    place: Path, number: signal.Signals
) -> None:
    """Whenever the signal comes, the stack is started again with its settings.

    The settings are the variables of `up`, not those of `backup`. If the folder can't be created, the stack is not
    stopped. On a busy machine the backup may be complete before the signal is sent: then it has its folder, and no
    error.
    """
    home = place / "first"
    await sandherd(home, "up", SANDHERD_MAX_SANDBOXES="7")
    supervisor = (await stack_status(home)).supervisor_pid
    assert supervisor is not None
    (place / "file").touch()
    assert "can't be written" in await sandherd(home, "backup", str(place / "file" / "folder"), status=1)
    assert (await stack_status(home)).supervisor_pid == supervisor
    environ = environment(home) | {"SANDHERD_MAX_SANDBOXES": "1"}
    process = await asyncio.create_subprocess_exec(
        preloaded_sandherd(), "backup", str(place / "monday"), env=environ, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE):
        await ended(supervisor)
    process.send_signal(number)
    _, error = await process.communicate()
    complete = process.returncode == 0 and not error
    assert complete or (process.returncode, b"the backup was interrupted" in error) == (1, True), error
    assert (await stack_status(home)).ready
    assert settings_of(home)["SANDHERD_MAX_SANDBOXES"] == "7"
    assert sorted(path.name for path in place.iterdir()) == ["file", "first", *(["monday"] if complete else [])]


async def test_a_stack_of_three_servers_is_restored_with_three_or_with_one(place: Path) -> None:
    """The stack has the number of servers of the backup, or of --replicas."""
    first, saved = place / "first", place / "monday"
    await sandherd(first, "up", "--nats", "3")
    await sandherd(first, "run", "done", "--", "true")
    await sandherd(first, "down")
    await sandherd(first, "backup", str(saved))
    assert "1 or 3 nats-servers, not 2" in await sandherd(
        place / "second", "restore", str(saved), "--replicas", "2", status=2
    )
    second, third = place / "second", place / "third"
    await sandherd(second, "restore", str(saved))
    assert size_of(second) == 3
    await sandherd(third, "restore", str(saved), "--replicas", "1")
    assert size_of(third) == 1
    await sandherd(third, "up")
    assert (await tasks(third))["done"]["state"] == "completed"
