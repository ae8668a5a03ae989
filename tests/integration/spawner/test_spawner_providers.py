"""A runtime that does not answer, does it too late, or has no room: nothing is doubled and nothing left behind."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from sandherd.bus.service import Service
from sandherd.contracts.commands import CancelTask, Retry
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from spawner.main import compose
from spawner.runtimes import processes
from spawner.runtimes.contract import Runtime, RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.environment import MARK
from spawner.runtimes.layout import Layout
from spawner.runtimes.opening import Options, open_runtime
from spawner.runtimes.process import ProcessRuntime

Create = Callable[[SandboxPlan, Callable[[SandboxPlan], Awaitable[None]]], Awaitable[None]]
Make = Callable[..., Service]


@pytest.fixture
def spawner_with(herd: Broker, home: Any, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A spawner on this host's runtime, but whose `create` does what the test says."""
    monkeypatch.setattr("spawner.main.SHORTEST_CALL", 1.0)

    def make(create: Create, **settings: Any) -> Service:
        async def opened(given: Settings) -> Sequence[Runtime]:
            runtime = await open_runtime(Options.of(given))
            real = runtime.create

            async def scripted(_self: ProcessRuntime, plan: SandboxPlan) -> None:
                await create(plan, real)

            monkeypatch.setattr(ProcessRuntime, "create", scripted)
            return [runtime]

        settings = {"home": home, "check_interval": 0.2, "stop_grace": 5, **settings}
        return compose(herd.settings(Principal.SPAWNER, **settings), runtimes=opened)

    return make


async def test_what_there_is_no_room_for_is_made_when_there_is(spawner_with: Make, person: Any) -> None:
    """Asked again and again within its time, it is made in the end: the same sandbox, once."""
    asked: list[str] = []

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        asked.append(plan.unit)
        if len(asked) < 3:
            raise RuntimeFailedError(RuntimeFault.QUOTA, "no room")
        await real(plan)

    async with spawner_with(create).running():
        view = await person.ended(await person.submit(["true"]))
        assert (view.state, view.attempt) == ("completed", 1)
        await person.all_gone()
    assert set(asked) == {view.sandbox}


async def test_what_is_never_made_fails_and_is_tried_again(spawner_with: Make, person: Any) -> None:
    """After its time the attempt has failed for a reason that may pass: the next one has a sandbox of its own."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        if plan.attempt == 1:
            raise RuntimeFailedError(RuntimeFault.QUOTA, "no room")
        await real(plan)

    async with spawner_with(create, spawn_timeout=10).running():
        # The second may take longer than that on a busy machine, too: then it is the third, or a later one.
        task = await person.submit(["true"], retry=Retry(max_attempts=10, first_delay_seconds=0))
        view = await person.ended(task)
        assert (view.state, view.attempt >= 2) == ("completed", True)
        await person.hears(task, "task.retry_scheduled")
        assert person.said(task, "task.retry_scheduled")["error_type"] == "runtime_quota"
        first = person.said(task, "task.retry_scheduled")["sandbox"]
        assert person.said(first, "sandbox.failed")["error_type"] == "runtime_quota"
        await person.all_gone()
    person.check_sequences()


async def test_an_answer_that_never_comes_leaves_nothing(spawner_with: Make, person: Any) -> None:
    """It was made though that was never said: its worker works, and with its end it is gone."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        await real(plan)
        await asyncio.Event().wait()

    async with spawner_with(create, spawn_timeout=20).running():
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "completed"
        await person.all_gone()
        await person.hears(view.sandbox, "sandbox.terminated")
    assert person.types(view.sandbox).count("agent.started") == 1
    person.check_sequences()


async def test_what_is_made_after_its_task_was_cancelled_goes(spawner_with: Make, person: Any) -> None:
    """A provider that does late what it was asked for makes something that nobody wants: no agent starts in it."""
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
        with suppress(RuntimeFailedError):  # removed while it is being made
            await real(plan)
        await person.all_gone()
        place = person.home / "sandboxes" / plan.unit
        await person.eventually(lambda: not processes.marked(MARK, str(place)))
    assert "agent.started" not in person.types(plan.sandbox)
    person.check_sequences()


async def test_what_is_made_twice_is_one(spawner_with: Make, person: Any) -> None:
    """Two answers to one request are one sandbox with one agent."""

    async def create(plan: SandboxPlan, real: Callable[[SandboxPlan], Awaitable[None]]) -> None:
        await asyncio.gather(real(plan), real(plan))

    async with spawner_with(create).running():
        view = await person.ended(await person.submit(["true"]))
        assert view.state == "completed"
        await person.all_gone()
    assert person.types(view.sandbox).count("agent.started") == 1


async def test_an_orphan_that_can_not_be_removed_keeps_no_other(
    spawner_with: Make, person: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one is left for the next pass, and tried again there; those behind it go in the same."""
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
        place = Layout(person.home / "sandboxes", person.home / "kept").place(name)
        place.make()
        place.label.write_text("p1")
    async with spawner_with(create, orphan_grace=0.3).running():
        await person.hears("sbx-b", "sandbox.orphan_removed")
        assert "sandbox.orphan_removed" not in person.types("sbx-a")
        stubborn.clear()
        await person.hears("sbx-a", "sandbox.orphan_removed")
