"""The whole life of tasks and sandboxes, with a real broker, a real spawner and the real worker."""

from collections.abc import Awaitable, Callable
from typing import Any

from sandherd.bus.service import Service
from sandherd.contracts.commands import CancelTask, SubmitTask, TerminateSandbox

Eventually = Callable[..., Awaitable[Any]]
Make = Callable[..., Service]
SLEEPER = ["/bin/sh", "-c", "touch up; exec sleep 600"]


async def test_a_task_is_done(spawner: Make, person: Any) -> None:
    """From submission to a sandbox that is gone, every step is an event and none is missing."""
    async with spawner().running():
        task = await person.submit(["/bin/sh", "-c", "cat given; echo made > made"], files={"given": "hello"})
        view = await person.ended(task)
        assert view.state == "completed"
        assert view.result["exit_code"] == 0
        await person.all_gone()
        assert view.sandbox
        await person.hears(view.sandbox, "sandbox.terminated")
    assert person.types(task) == ["task.submitted", "task.assigned", "task.running", "task.completed"]
    of_spawner = [kind for kind in person.types(view.sandbox) if kind.startswith("sandbox.")]
    assert of_spawner == [
        "sandbox.requested", "sandbox.spawned", "sandbox.running", "sandbox.stopping", "sandbox.terminated",
    ]  # fmt: skip
    assert person.types(view.sandbox)[-1] == "sandbox.terminated"
    person.check_sequences()


async def test_a_spawner_that_has_just_started_lists_all(spawner: Make, person: Any) -> None:
    """The first answer after a restart has what was there before: no answer is given before the records are read."""
    async with spawner().running():
        task = await person.submit(["true"])
        await person.ended(task)
        await person.all_gone()
    async with spawner().running():
        assert await person.task(task)
    async with spawner().running():
        assert await person.sandboxes()


async def test_a_task_that_fails_says_why(spawner: Make, person: Any) -> None:
    """The agent's exit status ends in the task's result."""
    async with spawner().running():
        view = await person.ended(await person.submit(["/bin/sh", "-c", "exit 3"]))
        assert (view.state, view.error_type, view.result["exit_code"]) == ("failed", "exit_status", 3)
        await person.all_gone()
    person.check_sequences()


async def test_a_repeated_command_is_one_task(spawner: Make, person: Any) -> None:
    """The same submission twice is one task; another under the same name is rejected, and the task goes on."""
    async with spawner().running() as service:
        task = await person.submit(["true"], "task-one")
        await person.command(SubmitTask(task=task, spec=person.spec(["true"])), task)
        other = await person.command(SubmitTask(task=task, spec=person.spec(["false"])), task)
        await person.hears(task, "task.rejected")
        assert (await service.bus.js.stream_info("DEAD")).state.messages == 0
        assert (await person.ended(task)).state == "completed"
        assert person.types(task).count("task.submitted") == 1
    (event,) = [event for event in person.events if event["type"] == "task.rejected"]
    assert event["source"].endswith(other.id.hex)
    assert (event["data"]["field"], event["data"]["reason"]) == ("task", "there is another task task-one")


async def test_a_task_that_can_not_be_taken_is_rejected(spawner: Make, person: Any) -> None:
    """An unknown runtime is said to whoever waits for the task; nothing of it is kept."""
    async with spawner().running():
        task = await person.submit(["true"], runtime="moon")
        await person.hears(task, "task.rejected")
        assert await person.task(task) is None
    (event,) = [event for event in person.events if event["subject"] == task]
    assert event["data"]["field"] == "spec.runtime"
    assert "process" in event["data"]["reason"]


async def test_cancel_while_it_waits(spawner: Make, person: Any) -> None:
    """A task that waits for a place is called off, and never gets a sandbox."""
    async with spawner(max_sandboxes=1).running():
        first = await person.submit(SLEEPER)
        await person.reaches(first, "running")
        second = await person.submit(SLEEPER)
        await person.reaches(second, "pending")
        await person.command(CancelTask(task=second, reason="no more"), second)
        view = await person.ended(second)
        assert (view.state, view.error, view.sandbox) == ("cancelled", "no more", None)
        await person.command(CancelTask(task=first), first)
        await person.all_gone()
    person.check_sequences()


async def test_cancel_while_it_runs(spawner: Make, person: Any) -> None:
    """Its sandbox ends, and what its worker says while it is ended does not change that it was called off."""
    async with spawner().running():
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        await person.command(CancelTask(task=task), task)
        assert (await person.ended(task)).state == "cancelled"
        await person.all_gone()
        assert view.sandbox
        await person.hears(view.sandbox, "agent.shutdown")
        assert (await person.ended(task)).state == "cancelled"
        await person.command(CancelTask(task=task), task)
        await person.hears(view.sandbox, "sandbox.terminated")
    assert person.types(task)[-1] == "task.cancelled"
    person.check_sequences()


async def test_cancel_as_soon_as_it_is_submitted(spawner: Make, person: Any) -> None:
    """Wherever the cancellation meets the task on its way, it ends cancelled and its sandbox is gone."""
    async with spawner().running():
        tasks = [await person.submit(SLEEPER) for _ in range(4)]
        for task in tasks:
            await person.command(CancelTask(task=task), task)
        assert {(await person.ended(task)).state for task in tasks} == {"cancelled"}
        await person.all_gone()
    person.check_sequences()


async def test_terminating_a_sandbox_ends_its_daemons(spawner: Make, person: Any) -> None:
    """Whatever an agent has started is gone with its sandbox, and its task has failed for the reason given."""
    daemon = "(setsid sh -c 'trap \"\" TERM; while :; do sleep 1; done' &) ; touch up; exec sleep 600"
    async with spawner().running():
        task = await person.submit(["/bin/sh", "-c", daemon])
        view = await person.reaches(task, "running")
        assert view.sandbox
        await person.eventually((person.home / "sandboxes" / view.sandbox / "work" / "up").exists)
        await person.command(TerminateSandbox(sandbox=view.sandbox, reason="idle"), view.sandbox)
        ended = await person.ended(task)
        assert (ended.state, ended.error_type) == ("failed", "idle")
        await person.all_gone()
    person.check_sequences()


async def test_no_more_sandboxes_than_allowed(spawner: Make, person: Any) -> None:
    """Tasks beyond the limit wait, and are done in the order in which they came."""
    async with spawner(max_sandboxes=2).running():
        tasks = [await person.submit(["true"]) for _ in range(5)]
        for task in tasks:
            assert (await person.ended(task)).state == "completed"
        await person.all_gone()
    live = most = 0
    for event in person.events:
        live += {"sandbox.requested": 1, "sandbox.terminated": -1}.get(event["type"], 0)
        most = max(most, live)
    assert most <= 2
    assigned = [event["subject"] for event in person.events if event["type"] == "task.assigned"]
    # Commands that come together are taken together: of those that find a place at once, any may be the first.
    assert (set(assigned[:2]), assigned[2:]) == (set(tasks[:2]), tasks[2:])
    person.check_sequences()
