"""Backups and restores are refused if they would be incomplete, or would overwrite data."""

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sandherd.admin import backup
from sandherd.bus.connection import Bus
from sandherd.client import HerdError
from sandherd.contracts.subjects import Principal
from sandherd.progress_steps import OnStep
from sandherd.stack.broker import Broker
from tests.integration.operating.herds import COMPOSE, context, running, sandherd, until

P = Principal


@pytest.fixture
async def stored(own_directory: Path) -> Path:
    return own_directory


async def test_incomplete_backup_is_refused(herd: Broker, postgres: str, tmp_path: Path, stored: Path) -> None:
    """With running services, an existing folder, no keys or no stream there is one line, and nothing is left."""
    keys = str(herd.home / "identity")
    async with running(herd, postgres, tmp_path / "home"):

        async def refused() -> bool:
            done = await asyncio.to_thread(sandherd, herd, "backup", str(stored / "one"), "--identity", keys)
            shutil.rmtree(stored / "one", ignore_errors=True)  # one from before the services were bound
            return done.returncode == 1 and "still running" in done.stderr

        await until(refused)
    there = await asyncio.to_thread(sandherd, herd, "backup", str(stored), "--identity", keys)
    keyless = await asyncio.to_thread(sandherd, herd, "backup", str(stored / "two"), "--identity", str(tmp_path))
    async with herd.provisioner() as jetstream:
        await jetstream.delete_stream("DEAD")
    gone = await asyncio.to_thread(sandherd, herd, "backup", str(stored / "two"), "--identity", keys)
    for done, expected_text in ((there, "already exists"), (keyless, "the herd's keys"), (gone, "stream DEAD: ")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert expected_text in done.stderr
    assert not (stored / "two").exists()


@pytest.mark.parametrize("left", COMPOSE)
async def test_any_running_service_refuses_a_backup(left: P, herd: Broker, tmp_path: Path, stored: Path) -> None:
    """The monitor has no durable consumer, and event-ingest may lack its database; each refuses it nevertheless."""
    keys, database = str(herd.home / "identity"), "postgresql://127.0.0.1:1/nowhere"
    service = COMPOSE[left](herd.settings(left, home=tmp_path / "home", database_url=database))
    async with service.running():
        done = await asyncio.to_thread(sandherd, herd, "backup", str(stored / "one"), "--identity", keys)
    assert (done.returncode, done.stdout, (stored / "one").exists()) == (1, "", False)
    assert f"{left.value} still running" in done.stderr


async def test_service_started_during_a_backup_fails_it(
    herd: Broker, tmp_path: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that is started meanwhile may have changed one stream and not the other."""
    take = backup._save_streams
    async with AsyncExitStack() as stack:

        async def taken(bus: Bus, folder: Path, names: list[str], on_step: OnStep) -> dict[str, dict[str, Any]]:
            held = await take(bus, folder, names, on_step)
            await stack.enter_async_context(COMPOSE[P.MONITOR](herd.settings(P.MONITOR, home=tmp_path)).running())
            return held

        monkeypatch.setattr(backup, "_save_streams", taken)
        with pytest.raises(HerdError, match="monitor still running"):
            await backup.back_up(context(herd), herd.home / "identity", stored / "one")
    assert not (stored / "one").exists()


async def test_restore_overwrites_nothing(herd: Broker, stored: Path) -> None:
    """A broker with other data is left as it is, and so is one if a file of the backup is damaged."""
    keys = str(herd.home / "identity")
    saved = await asyncio.to_thread(sandherd, herd, "backup", str(stored / "b"), "--identity", keys)
    assert saved.returncode == 0, saved.stderr
    async with herd.bus(P.SPAWNER) as bus:
        await bus.js.publish("$KV.tasks.p1.task-1", b"{}")
    other = await asyncio.to_thread(sandherd, herd, "restore", str(stored / "b"), "--identity", keys)
    assert other.returncode == 1
    assert "KV_tasks has 1 messages" in other.stderr
    (stored / "b/EVENTS.snapshot").write_bytes(b"cut off")
    broken = await asyncio.to_thread(sandherd, herd, "restore", str(stored / "b"), "--identity", keys)
    assert broken.returncode == 1
    assert "EVENTS.snapshot was changed or damaged" in broken.stderr
    async with herd.provisioner() as jetstream:
        assert (await jetstream.stream_info("KV_tasks")).state.messages == 1
