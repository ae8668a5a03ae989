"""Losses are found: killed workers, sandboxes without records, restarted spawners, late events."""

import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sandherd import processes
from sandherd.bus.connection import Bus, BusError, ConnectionIdentity, RefusedError
from sandherd.bus.identity import Key, KeyKind, bearer
from sandherd.bus.replies import read_reply
from sandherd.contracts.commands import CancelTask
from sandherd.contracts.envelope import wrap
from sandherd.contracts.errors import Code
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentStarted
from sandherd.contracts.requests import CredentialGrant, GetCredential
from sandherd.contracts.subjects import CREDENTIAL, Principal
from sandherd.private_files import write_file
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.main import Spawner
from spawner.runtimes import shim, termination
from spawner.runtimes.layout import Layout
from spawner.sandboxes.lifecycle_facts import LifecycleTimeouts
from tests.patience import PATIENCE

Eventually = Callable[..., Awaitable[Any]]
Make = Callable[..., Service]
SLEEPER = ["/bin/sh", "-c", "touch up; exec sleep 600"]


def place_of(home: Path, sandbox: str) -> Any:
    return Layout(home / "sandboxes", home / "kept").directory(sandbox)


def worker_of(home: Path, sandbox: str) -> int:
    """The worker's process, which is the second in its pid namespace."""
    claim = shim.read_claim(place_of(home, sandbox).runs()[-1])
    assert claim
    inits = [init for outer in processes.children(claim.pid) for init in processes.children(outer)]
    worker = next(found for init in inits if (found := termination.worker_below(init)))
    return worker.pid


async def test_killed_worker_fails_its_task(spawner: Make, person: Any) -> None:
    """A SIGKILL of a worker ends its task, which the recovery publishes; no process of it remains."""
    async with spawner().running():
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        os.kill(worker_of(person.home, view.sandbox), signal.SIGKILL)
        ended = await person.ended(task)
        assert ended.state == "failed"
        assert ended.error_type in {"worker_lost", "signal"}
        await person.all_gone()
        await person.receives(view.sandbox, "agent.shutdown")
        await person.receives(view.sandbox, "sandbox.terminated")
    assert person.types(view.sandbox).count("agent.failed") == 1
    person.check_sequences()


async def test_sandbox_survives_its_spawner(spawner: Make, person: Any) -> None:
    """The worker continues without a spawner; the next spawner adopts its sandbox and completes the task."""
    argv = ["/bin/sh", "-c", "touch up; while [ ! -e go ]; do sleep 0.05; done"]
    async with spawner().running():
        task = await person.submit(argv)
        view = await person.reaches(task, "running")
    place = place_of(person.home, view.sandbox)
    worker = processes.find(worker_of(person.home, view.sandbox))
    assert worker
    assert worker.alive()
    (place.work / "go").touch()
    await person.receives(view.sandbox, "agent.completed")
    async with spawner().running():
        assert (await person.ended(task)).state == "completed"
        await person.all_gone()
        await person.receives(view.sandbox, "sandbox.terminated")
    assert person.types(view.sandbox).count("agent.started") == 1
    person.check_sequences()


async def test_late_events_of_an_old_sandbox_change_nothing(spawner: Make, person: Any, herd: Broker) -> None:
    """Only events of the sandbox that the task's current attempt names count, and only its first end."""
    async with spawner().running() as service:
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        await person.command(CancelTask(task=task), task)
        await person.ended(task)
        await person.all_gone()
        for sandbox in (view.sandbox, "sbx-never-was"):
            async with herd.bus(Principal.WORKER, project="p1", sandbox=sandbox) as liar:
                for number, data in enumerate((started(), AgentCompleted(), failed()), start=1):
                    await publish_data(liar, sandbox, data, 1000 + number)

        async def taken_in() -> bool:
            info = await service.bus.js.consumer_info("EVENTS", "spawner-agents")
            return not info.num_pending and not info.num_ack_pending

        await person.eventually(taken_in)
        assert (await person.task(task)).state == "cancelled"
        counted = service.registry.get_sample_value
        assert counted("sandherd_late_events_total", {"reason": "unknown_sandbox"}) == 3
        assert (counted("sandherd_late_events_total", {"reason": "task_ended"}) or 0) >= 3
        assert not counted("sandherd_transitions_refused_total", {"kind": "TaskState"})
    assert person.types(task)[-1] == "task.cancelled"


def started() -> AgentStarted:
    return AgentStarted(timestamp=datetime.now(UTC), sdk="command", task="x", task_description_length=1)


def failed() -> AgentFailed:
    return AgentFailed(error="x", error_type="exit_status")


async def publish_data(bus: Bus, sandbox: str, data: EventData, number: int) -> None:
    await bus.publish_event(
        wrap(
            data, data.type, source=f"/sandherd/sandbox/{sandbox}", sequence=number, project="p1", subject=sandbox,
            time=datetime.now(UTC), sandboxid=sandbox, taskid="a-lie",
        )
    )  # fmt: skip


async def ask(herd: Broker, sandbox: str, fence: int, key: Key) -> CredentialGrant:
    request = GetCredential(public_key=key.public, fence=fence)
    async with herd.bus(Principal.JOINER, project="p1", sandbox=sandbox) as joiner:
        subject = CREDENTIAL.fill(project="p1", sandbox=sandbox)
        answer = await joiner.request(subject, request.model_dump_json().encode(), timeout=PATIENCE)
        return read_reply(answer, CredentialGrant)


async def test_credentials_are_for_live_sandboxes(spawner: Make, person: Any, herd: Broker) -> None:
    """A live sandbox gets a credential for its fence; a wrong fence, an ended and an unknown sandbox are refused."""
    key = Key.new(KeyKind.USER)
    async with spawner().running() as service:
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        entry = await (await service.bus.js.key_value("sandboxes")).get(f"p1.{view.sandbox}")
        fence = json.loads(entry.value or b"")["fence"]
        grant = await ask(herd, view.sandbox, fence, key)
        for sandbox, wrong in ((view.sandbox, fence + 1), ("sbx-never-was", fence)):
            with pytest.raises(RefusedError) as refused:
                await ask(herd, sandbox, wrong, key)
            assert refused.value.problem.code is Code.REFUSED
        await person.command(CancelTask(task=task), task)
        await person.all_gone()
        with pytest.raises(BusError):
            await ask(herd, view.sandbox, fence, key)
        listed = await (await service.bus.js.key_value("revocations")).get("list")
        assert key.public in (listed.value or b"").decode()
    assert grant.jwt.count(".") == 2


async def test_a_bootstrap_credential_is_rejected_after_the_end(spawner: Make, person: Any, herd: Broker) -> None:
    """The joiner's file gives no access after its sandbox has ended or was lost.

    A connection that is still open at the end is closed.
    """
    async with spawner().running():
        first = await person.submit(SLEEPER)
        second = await person.submit(SLEEPER)
        views = [await person.reaches(task, "running") for task in (first, second)]
        texts = [place_of(person.home, view.sandbox).joiner.read_text() for view in views]
        async with joined(herd, texts[0], PATIENCE) as open_at_the_end:
            assert open_at_the_end.connected
            await person.command(CancelTask(task=first), first)
            os.kill(worker_of(person.home, views[1].sandbox), signal.SIGKILL)
            await person.all_gone()

            async def cut() -> bool:
                return not open_at_the_end.connected

            await person.eventually(cut)
        for text in texts:
            with pytest.raises(BusError):
                async with joined(herd, text):
                    pass


@asynccontextmanager
async def joined(herd: Broker, text: str, patience: float = 5) -> AsyncIterator[Bus]:
    """Try to connect with a copied bootstrap credential for this number of seconds."""
    path = herd.home / "creds" / f"{uuid4().hex}.creds"
    write_file(path, text)
    who = bearer(text)
    identity = ConnectionIdentity.file(path)
    async with Bus.open(herd.url, name=who.name, identity=identity, inbox=who.inbox, connect_timeout=patience) as bus:
        yield bus


async def test_orphan_is_reported_and_removed(spawner: Make, person: Any) -> None:
    """An unwanted sandbox is reported once, and removed after its grace time."""
    place = place_of(person.home, "sbx-orphan")
    place.make()
    place.label.write_text("p1")
    async with spawner(orphan_grace=0.5).running():
        await person.receives("sbx-orphan", "sandbox.orphan_removed")
        assert not place.exists()
    assert person.types("sbx-orphan") == ["sandbox.orphan_found", "sandbox.orphan_removed"]
    person.check_sequences()


async def test_ended_records_are_removed_after_their_time(spawner: Make, person: Any) -> None:
    """Records of tasks and sandboxes that ended long ago leave the live buckets, and their names may be used again."""
    async with spawner(keep_ended=0.3).running():
        for ends in (1, 2):
            await person.submit(["true"], "task-again")
            await person.eventually(lambda ends=ends: person.types("task-again").count("task.completed") == ends)

            async def purged() -> bool:
                return await person.task("task-again") is None and not await person.sandboxes()

            await person.eventually(purged)
    person.check_sequences()
    assert len({event["source"] for event in person.events if event["subject"] == "task-again"}) == 2


async def test_unpublished_events_are_published_after_a_repair(
    spawner: Make, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox is quarantined while no recovery succeeds; the next spawner tries again, with another key."""
    monkeypatch.setattr(Spawner, "_rules", lambda _: LifecycleTimeouts(max_recoveries=1))
    broken = (
        "import runpy, sys\nif '--recover' in sys.argv: sys.exit('broken')\n"
        "runpy.run_module('sandherd_worker.main', run_name='__main__')"
    )
    async with spawner(worker=(sys.executable, "-P", "-c", broken), keep_ended=0.1).running() as service:
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        os.kill(worker_of(person.home, view.sandbox), signal.SIGKILL)
        await person.receives(view.sandbox, "sandbox.terminated")

        async def counted() -> bool:
            return service.registry.get_sample_value("sandherd_sandboxes_kept") == 1

        await person.eventually(counted)
        assert [entry.name for entry in (person.home / "kept").iterdir()] == [view.sandbox]
        state = person.home / "kept" / view.sandbox / "state"
        assert {"task.json", "joiner.creds", "worker.nk"}.isdisjoint(entry.name for entry in state.iterdir())
        ended = next(event for event in person.events if event["type"] == "sandbox.terminated")
        assert ended["data"]["unsaid"] is True
        await person.all_gone()
    assert "agent.shutdown" not in person.types(view.sandbox)
    async with spawner().running():
        await person.receives(view.sandbox, "agent.shutdown")
        await person.eventually(lambda: not list((person.home / "kept").iterdir()))
        await person.all_gone()
    assert person.types(view.sandbox).count("sandbox.terminated") == 1
    person.check_sequences()


async def test_silent_worker_fails_its_task(spawner: Make, person: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that hangs or can't start fails the task, with the worker's last output if there is any."""
    hangs = (sys.executable, "-c", "import signal; signal.signal(15, lambda *_: exit(0)); signal.pause()")
    async with spawner(worker=hangs, spawn_timeout=1).running():
        view = await person.ended(await person.submit(["true"]))
        assert (view.state, view.error_type) == ("failed", "spawn_timeout")
        await person.all_gone()
    breaks = (sys.executable, "-c", "import sys; sys.stderr.write('no such module\\n'); sys.exit(2)")
    async with spawner(worker=breaks).running():
        view = await person.ended(await person.submit(["true"]))
        assert (view.state, view.error_type) == ("failed", "worker_lost")
        assert "no such module" in view.error
        await person.all_gone()
    person.check_sequences()
