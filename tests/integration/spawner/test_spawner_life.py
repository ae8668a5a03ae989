"""The whole life of tasks and sandboxes, with a real broker, spawner and worker."""

from collections.abc import Awaitable, Callable
from typing import Any

from sandherd.contracts.commands import CancelTask, SubmitTask, TerminateSandbox
from sandherd.service.service import Service

Eventually = Callable[..., Awaitable[Any]]
Make = Callable[..., Service]
SLEEPER = ["/bin/sh", "-c", "touch up; exec sleep 600"]


async def test_task_is_completed(spawner: Make, person: Any) -> None:
    """From its submission until its sandbox is removed, every step of a task is an event, and none is missing."""
    async with spawner().running():
        task = await person.submit(["/bin/sh", "-c", "cat given; echo made > made"], files={"given": "hello"})
        view = await person.ended(task)
        assert view.state == "completed"
        assert view.result["exit_code"] == 0
        await person.all_gone()
        assert view.sandbox
        await person.receives(view.sandbox, "sandbox.terminated")
    assert person.types(task) == ["task.submitted", "task.assigned", "task.running", "task.completed"]
    of_spawner = [kind for kind in person.types(view.sandbox) if kind.startswith("sandbox.")]
    assert of_spawner == [
        "sandbox.requested", "sandbox.spawned", "sandbox.running", "sandbox.stopping", "sandbox.terminated",
    ]  # fmt: skip
    assert person.types(view.sandbox)[-1] == "sandbox.terminated"
    person.check_sequences()


async def test_restarted_spawner_lists_all_records(spawner: Make, person: Any) -> None:
    """The first reply after a restart contains earlier records: no reply is sent before they are read."""
    async with spawner().running():
        task = await person.submit(["true"])
        await person.ended(task)
        await person.all_gone()
    async with spawner().running():
        assert await person.task(task)
    async with spawner().running():
        assert await person.sandboxes()


async def test_failed_task_states_why(spawner: Make, person: Any) -> None:
    """The task's result has the agent's exit status."""
    async with spawner().running():
        view = await person.ended(await person.submit(["/bin/sh", "-c", "exit 3"]))
        assert (view.state, view.error_type, view.result["exit_code"]) == ("failed", "exit_status", 3)
        await person.all_gone()
    person.check_sequences()


async def test_repeated_command_is_one_task(spawner: Make, person: Any) -> None:
    """A repeated submission is one task; another task with its name is rejected, and the first continues."""
    async with spawner().running() as service:
        task = await person.submit(["true"], "task-one")
        await person.command(SubmitTask(task=task, spec=person.spec(["true"])), task)
        other = await person.command(SubmitTask(task=task, spec=person.spec(["false"])), task)
        await person.receives(task, "task.refused")
        assert (await service.bus.js.stream_info("DEAD")).state.messages == 0
        assert (await person.ended(task)).state == "completed"
        assert person.types(task).count("task.submitted") == 1
    (event,) = [event for event in person.events if event["type"] == "task.refused"]
    assert event["source"].endswith(other.id.hex)
    assert (event["data"]["field"], event["data"]["reason"]) == ("task", "another task task-one already exists")


async def test_impossible_task_is_rejected(spawner: Make, person: Any) -> None:
    """A task with an unknown runtime is rejected with an event, and nothing of it is stored."""
    async with spawner().running():
        task = await person.submit(["true"], runtime="moon")
        await person.receives(task, "task.rejected")
        assert await person.task(task) is None
    (event,) = [event for event in person.events if event["subject"] == task]
    assert event["data"]["field"] == "spec.runtime"
    assert "process" in event["data"]["reason"]


async def test_pending_task_is_cancelled(spawner: Make, person: Any) -> None:
    """A task that waits for capacity is cancelled, and never gets a sandbox."""
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


async def test_running_task_is_cancelled(spawner: Make, person: Any) -> None:
    """The events that a cancelled task's worker publishes while its sandbox ends do not change the task's state."""
    async with spawner().running():
        task = await person.submit(SLEEPER)
        view = await person.reaches(task, "running")
        await person.command(CancelTask(task=task), task)
        assert (await person.ended(task)).state == "cancelled"
        await person.all_gone()
        assert view.sandbox
        await person.receives(view.sandbox, "agent.shutdown")
        assert (await person.ended(task)).state == "cancelled"
        await person.command(CancelTask(task=task), task)
        await person.receives(view.sandbox, "sandbox.terminated")
        await person.receives(task, "task.refused")
    assert person.types(task)[-2:] == ["task.cancelled", "task.refused"]
    person.check_sequences()


async def test_task_is_cancelled_right_after_its_submission(spawner: Make, person: Any) -> None:
    """A task that is cancelled right after its submission ends cancelled, at any state, and its sandbox is removed."""
    async with spawner().running():
        tasks = [await person.submit(SLEEPER) for _ in range(4)]
        for task in tasks:
            await person.command(CancelTask(task=task), task)
        assert {(await person.ended(task)).state for task in tasks} == {"cancelled"}
        await person.all_gone()
    person.check_sequences()


async def test_terminated_sandbox_ends_with_its_daemons(spawner: Make, person: Any) -> None:
    """Every process of the agent ends, and the task fails for the given reason."""
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


async def test_sandboxes_are_limited(spawner: Make, person: Any) -> None:
    """Tasks beyond the limit wait, and run in the order of their submission."""
    async with spawner(max_sandboxes=2).running():
        tasks = [await person.submit(["true"]) for _ in range(5)]
        for task in tasks:
            assert (await person.ended(task)).state == "completed"
        await person.all_gone()
    live = most = 0
    # Events of different sandboxes may be published in any order; the times are those of the records.
    for event in sorted(person.unique(), key=lambda event: (event["time"], event["type"] == "sandbox.requested")):
        live += {"sandbox.requested": 1, "sandbox.terminated": -1}.get(event["type"], 0)
        most = max(most, live)
    assert most <= 2
    assignments = [event for event in person.events if event["type"] == "task.assigned"]
    assigned = [event["subject"] for event in sorted(assignments, key=lambda event: event["time"])]
    # Commands that arrive together are processed together: any of those that find a place at once may be the first.
    assert (set(assigned[:2]), assigned[2:]) == (set(tasks[:2]), tasks[2:])
    person.check_sequences()
