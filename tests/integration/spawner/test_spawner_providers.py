"""A runtime without a reply, with a late one, or without capacity: nothing is duplicated or left behind."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from sandherd import processes
from sandherd.contracts.commands import CancelTask, RetryPolicy
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.environment import MARK
from spawner.runtimes.factory import ProcessRuntimeOptions, open_runtime
from spawner.runtimes.layout import Layout
from spawner.runtimes.process import ProcessRuntime

Create = Callable[[SandboxPlan, Callable[[SandboxPlan], Awaitable[None]]], Awaitable[None]]
Make = Callable[..., Service]


@pytest.fixture
def spawner_with(herd: Broker, home: Any, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A spawner on this host's runtime, whose `create` does what the test sets."""
    monkeypatch.setattr("spawner.main.SHORTEST_CALL", 1.0)

    def make(create: Create, **settings: Any) -> Service:
        async def opened(given: Settings) -> Sequence[Runtime]:
            runtime = await open_runtime(ProcessRuntimeOptions.of(given))
            real = runtime.create

            async def scripted(_self: ProcessRuntime, plan: SandboxPlan) -> None:
                await create(plan, real)

            monkeypatch.setattr(ProcessRuntime, "create", scripted)
            return [runtime]

        settings = {"home": home, "check_interval": 0.2, "stop_grace": 5, **settings}
        return compose(herd.settings(Principal.SPAWNER, **settings), runtimes=opened)

    return make


async def test_sandbox_is_created_once_capacity_is_available(spawner_with: Make, person: Any) -> None:
    """The request is repeated within its time, and creates the same sandbox, once."""
    requested: list[str] = []

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        requested.append(plan.unit)
        if len(requested) < 3:
            raise RuntimeFailedError(RuntimeFault.QUOTA, "no capacity")
        await real(plan)

    async with spawner_with(create).running():
        view = await person.ended(await person.submit(["true"]))
        assert (view.state, view.attempt) == ("completed", 1)
        await person.all_gone()
    assert set(requested) == {view.sandbox}


async def test_sandbox_never_created_fails_its_attempt(spawner_with: Make, person: Any) -> None:
    """An attempt whose sandbox is not created in time fails temporarily; the next attempt has another sandbox."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        if plan.attempt == 1:
            raise RuntimeFailedError(RuntimeFault.QUOTA, "no capacity")
        await real(plan)

    async with spawner_with(create, spawn_timeout=10).running():
        # The second attempt may also take too long on a busy machine: then it is the third, or a later one.
        task = await person.submit(["true"], retry=RetryPolicy(max_attempts=10, first_delay_seconds=0))
        view = await person.ended(task)
        assert (view.state, view.attempt >= 2) == ("completed", True)
        await person.receives(task, "task.retry_scheduled")
        assert person.event_data(task, "task.retry_scheduled")["error_type"] == "runtime_quota"
        first = person.event_data(task, "task.retry_scheduled")["sandbox"]
        assert person.event_data(first, "sandbox.failed")["error_type"] == "runtime_quota"
        await person.all_gone()
    person.check_sequences()


async def test_creation_without_a_reply_leaves_nothing(spawner_with: Make, person: Any) -> None:
    """A sandbox that was created without a reply has a running worker, and is removed at its end."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        await real(plan)
        await asyncio.Event().wait()

    async with spawner_with(create, spawn_timeout=20).running():
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "completed"
        await person.all_gone()
        await person.receives(view.sandbox, "sandbox.terminated")
    assert person.types(view.sandbox).count("agent.started") == 1
    person.check_sequences()


async def test_sandbox_created_after_its_task_was_cancelled_is_removed(spawner_with: Make, person: Any) -> None:
    """A provider that creates a sandbox after its task was cancelled starts no agent, and the sandbox is removed."""
    late: list[tuple[SandboxPlan, Callable[[SandboxPlan], Awaitable[None]]]] = []

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        late.append((plan, real))
        raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "no answer")

    async with spawner_with(create).running():
        task = await person.submit(["/bin/sh", "-c", "touch started; exec sleep 600"])
        await person.eventually(lambda: late)
        await person.command(CancelTask(task=task), task)
        view = await person.ended(task)
        assert view.state == "cancelled"
        await person.all_gone()
        plan, real = late[0]
        with suppress(RuntimeFailedError):  # removed while it is being created
            await real(plan)
        await person.all_gone()
        place = person.home / "sandboxes" / plan.unit
        await person.eventually(lambda: not processes.marked(MARK, str(place)))
    assert "agent.started" not in person.types(plan.sandbox)
    person.check_sequences()


async def test_sandbox_created_twice_is_one(spawner_with: Make, person: Any) -> None:
    """Two replies to one request are one sandbox with one agent."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        await asyncio.gather(real(plan), real(plan))

    async with spawner_with(create).running():
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "completed"
        await person.all_gone()
    assert person.types(view.sandbox).count("agent.started") == 1


async def test_failed_removal_of_an_orphan_blocks_no_other(
    spawner_with: Make, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An orphan that can't be removed is tried again in the next pass; those behind it are removed in this one."""
    remove = ProcessRuntime.remove
    stubborn = [True]

    async def remove_unless(runtime: ProcessRuntime, unit: str) -> None:
        if unit == "sbx-a" and stubborn:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, "not now")
        await remove(runtime, unit)

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        await real(plan)

    monkeypatch.setattr(ProcessRuntime, "remove", remove_unless)
    for name in ("sbx-a", "sbx-b"):
        place = Layout(person.home / "sandboxes", person.home / "kept").directory(name)
        place.make()
        place.label.write_text("p1")
    async with spawner_with(create, orphan_grace=0.3).running():
        await person.receives("sbx-b", "sandbox.orphan_removed")
        assert "sandbox.orphan_removed" not in person.types("sbx-a")
        stubborn.clear()
        await person.receives("sbx-a", "sandbox.orphan_removed")
