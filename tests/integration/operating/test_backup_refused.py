"""What `sandherd backup` and `restore` refuse: what would not be whole, and what would be written over."""

import asyncio
import shutil
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from sandherd.bus.connection import Bus
from sandherd.client import HerdError, backing_up
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.integration.operating.herds import COMPOSE, context, running, sandherd, until

P = Principal


@pytest.fixture
async def kept(own_directory: Path) -> Path:
    return own_directory


async def test_a_backup_is_refused_where_it_would_not_be_whole(
    herd: Broker, postgres: str, tmp_path: Path, kept: Path
) -> None:
    """While services work, where a folder is, without keys or a stream: one line, and nothing is left of it."""
    keys = str(herd.home / "identity")
    async with running(herd, postgres, tmp_path / "home"):

        async def refused() -> bool:
            done = await asyncio.to_thread(sandherd, herd, "backup", str(kept / "one"), "--identity", keys)
            shutil.rmtree(kept / "one", ignore_errors=True)  # one that was made before the services were bound
            return done.returncode == 1 and "still at work" in done.stderr

        await until(refused)
    there = await asyncio.to_thread(sandherd, herd, "backup", str(kept), "--identity", keys)
    keyless = await asyncio.to_thread(sandherd, herd, "backup", str(kept / "two"), "--identity", str(tmp_path))
    async with herd.provisioner() as jetstream:
        await jetstream.delete_stream("DEAD")
    gone = await asyncio.to_thread(sandherd, herd, "backup", str(kept / "two"), "--identity", keys)
    for done, says in ((there, "is there already"), (keyless, "keys of a herd"), (gone, "stream DEAD: ")):
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
        assert says in done.stderr
    assert not (kept / "two").exists()


@pytest.mark.parametrize("left", COMPOSE)
async def test_one_service_that_was_left_at_work_is_enough_to_refuse(
    left: P, herd: Broker, tmp_path: Path, kept: Path
) -> None:
    """Whichever it is, also the monitor, which has no durable consumer, and an event-ingest without its database."""
    keys, database = str(herd.home / "identity"), "postgresql://127.0.0.1:1/nowhere"
    service = COMPOSE[left](herd.settings(left, home=tmp_path / "home", database_url=database))
    async with service.running():
        done = await asyncio.to_thread(sandherd, herd, "backup", str(kept / "one"), "--identity", keys)
    assert (done.returncode, done.stdout, (kept / "one").exists()) == (1, "", False)
    assert f"{left.value} still at work" in done.stderr


async def test_a_service_that_is_started_meanwhile_spoils_a_backup(
    herd: Broker, tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is scaled up again by itself: what it changed may be in one stream and not in the other."""
    take = backing_up._take
    async with AsyncExitStack() as stack:

        async def taken(bus: Bus, folder: Path, names: list[str]) -> dict[str, dict[str, Any]]:
            held = await take(bus, folder, names)
            await stack.enter_async_context(COMPOSE[P.MONITOR](herd.settings(P.MONITOR, home=tmp_path)).running())
            return held

        monkeypatch.setattr(backing_up, "_take", taken)
        with pytest.raises(HerdError, match="monitor still at work"):
            await backing_up.back_up(context(herd), herd.home / "identity", kept / "one")
    assert not (kept / "one").exists()


async def test_nothing_is_restored_over_anything(herd: Broker, kept: Path) -> None:
    """A broker that holds other things is left as it is, and so is one for which a file of the backup is broken."""
    keys = str(herd.home / "identity")
    saved = await asyncio.to_thread(sandherd, herd, "backup", str(kept / "b"), "--identity", keys)
    assert saved.returncode == 0, saved.stderr
    async with herd.bus(P.SPAWNER) as bus:
        await bus.js.publish("$KV.tasks.p1.task-1", b"{}")
    other = await asyncio.to_thread(sandherd, herd, "restore", str(kept / "b"), "--identity", keys)
    assert other.returncode == 1
    assert "KV_tasks holds 1 messages" in other.stderr
    (kept / "b/EVENTS.snapshot").write_bytes(b"cut off")
    broken = await asyncio.to_thread(sandherd, herd, "restore", str(kept / "b"), "--identity", keys)
    assert broken.returncode == 1
    assert "EVENTS.snapshot is not what was written" in broken.stderr
    async with herd.provisioner() as jetstream:
        assert (await jetstream.stream_info("KV_tasks")).state.messages == 1
