"""Reconciliation: lost sandboxes are retried with their work, and orphans are removed."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd import processes
from sandherd.contracts.commands import RetryPolicy, TerminateSandbox
from sandherd.contracts.requests import Prune, PruneResult
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.runtimes import shim, termination
from spawner.runtimes.layout import Layout, SandboxDirectory
from tests.patience import PATIENCE

Make = Callable[..., Service]
AT_ONCE = RetryPolicy(first_delay_seconds=0)
LEAVES_WORK = (
    'if [ "$SANDHERD_ATTEMPT" = 1 ]; then echo half >made; touch up; exec sleep 600; fi; '
    'cd "$SANDHERD_PREVIOUS_DIR" && cat work/made'
)


def place_of(home: Path, sandbox: str) -> SandboxDirectory:
    return Layout(home / "sandboxes", home / "kept").directory(sandbox)


def worker_of(home: Path, sandbox: str) -> int:
    claim = shim.read_claim(place_of(home, sandbox).runs()[-1])
    assert claim
    inits = [init for outer in processes.children(claim.pid) for init in processes.children(outer)]
    return next(found for init in inits if (found := termination.worker_below(init))).pid


async def prune(herd: Broker, *, now: bool = False) -> PruneResult:
    async with herd.bus(Principal.OPERATOR) as operator:
        return await operator.ask(Prune(now=now), "fleet", timeout=PATIENCE)


async def test_lost_worker_is_retried_in_a_new_sandbox(spawner: Make, person: Any) -> None:
    """The next attempt of a lost worker has its own sandbox, with the earlier work beside its work tree."""
    async with spawner(max_attempts=2).running():
        task = await person.submit(["/bin/sh", "-c", LEAVES_WORK], retry=AT_ONCE)
        first = (await person.reaches(task, "running")).sandbox
        await person.eventually((place_of(person.home, first).work / "up").exists)
        os.kill(worker_of(person.home, first), signal.SIGKILL)
        view = await person.ended(task)
        assert (view.state, view.attempt) == ("completed", 2)
        assert view.sandbox != first
        await person.all_gone()
        await person.receives(view.sandbox, "sandbox.terminated")
        await person.receives(first, "sandbox.terminated")
    assert "half" in view.result.get("final_output", "") or "agent.work_saved" in person.types(first)
    assert person.event_data(task, "task.retry_scheduled")["error_type"] in {"worker_lost", "signal"}
    assert (
        person.event_data(first, "sandbox.terminated")["reason"]
        == person.event_data(task, "task.retry_scheduled")["error_type"]
    )
    person.check_sequences()


async def test_lost_sandbox_fails_its_attempt_and_is_retried(spawner: Make, person: Any) -> None:
    """A sandbox that is missing at its runtime is reported as lost, and the task continues in another sandbox."""
    argv = ["/bin/sh", "-c", '[ "$SANDHERD_ATTEMPT" = 2 ] || { touch up; exec sleep 600; }']
    async with spawner(max_attempts=2).running():
        task = await person.submit(argv, retry=AT_ONCE)
        first = (await person.reaches(task, "running")).sandbox
        place = place_of(person.home, first)
        await person.eventually((place.work / "up").exists)
        aside = person.home / "lost"
        place.folder.rename(aside)
        os.kill(worker_of_folder(aside), signal.SIGKILL)
        view = await person.ended(task)
        assert (view.state, view.attempt) == ("completed", 2)
        await person.receives(first, "sandbox.failed")
        await person.all_gone()
        shutil.rmtree(aside)
    assert person.event_data(first, "sandbox.failed")["error_type"] == "sandbox_lost"
    assert person.event_data(task, "task.retry_scheduled")["error_type"] == "sandbox_lost"
    person.check_sequences()


def worker_of_folder(folder: Path) -> int:
    claim = shim.read_claim(SandboxDirectory(folder).runs()[-1])
    assert claim
    inits = [init for outer in processes.children(claim.pid) for init in processes.children(outer)]
    return next(found for init in inits if (found := termination.worker_below(init))).pid


async def test_reconciliation_can_be_requested(spawner: Make, person: Any, herd: Broker) -> None:
    """The reply lists the existing and the wanted sandboxes; orphans are removed on request, wanted sandboxes stay."""
    async with spawner(orphan_grace=3600).running():
        name = await person.create()
        await person.sandbox_is(name, "running")
        orphan = place_of(person.home, "sbx-orphan")
        orphan.make()
        orphan.label.write_text("p1")
        found = await prune(herd)
        assert [(one.sandbox, one.runtime, one.removed) for one in found.orphans] == [("sbx-orphan", "process", False)]
        assert (found.present, found.records, found.lost) == (2, 1, [])
        await person.receives("sbx-orphan", "sandbox.orphan_found")
        assert orphan.exists()
        assert [one.removed for one in (await prune(herd, now=True)).orphans] == [True]
        await person.receives("sbx-orphan", "sandbox.orphan_removed")
        assert not orphan.exists()
        await person.sandbox_is(name, "running")
        assert (await prune(herd, now=True)).orphans == []
        await person.command(TerminateSandbox(sandbox=name, reason=""), name)
        await person.all_gone()
    person.check_sequences()


@pytest.mark.parametrize("argv", [["true"], ["false"]])
async def test_ended_task_leaves_no_orphan(spawner: Make, person: Any, herd: Broker, argv: list[str]) -> None:
    """After a task has ended, successfully or not, no sandbox and no record remains."""
    async with spawner().running():
        await person.ended(await person.submit(argv))
        await person.all_gone()
        found = await prune(herd)
        assert (found.present, found.records, found.orphans, found.lost) == (0, 0, [], [])
