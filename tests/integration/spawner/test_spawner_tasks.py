"""Attempts, time limits, dependencies and the order of tasks, with a real broker, spawner and worker."""

import math
import os
import signal
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sandherd.contracts.commands import CancelTask, RetryPolicy, RetryTask
from sandherd.contracts.requests import ListLiveTasks
from sandherd.contracts.states import TaskState
from sandherd.service.service import Service
from tests.integration.spawner.test_spawner_losses import worker_of
from tests.patience import PATIENCE

Make = Callable[..., Service]
SECOND_GOES_WELL = ["/bin/sh", "-c", 'test "$SANDHERD_ATTEMPT" = 2 && exit 0; touch up; exec sleep 600']
AT_ONCE = RetryPolicy(max_attempts=2, first_delay_seconds=0)


def data_of(person: Any, entity: str, kind: str) -> dict[str, Any]:
    (event,) = [event for event in person.unique() if (event["subject"], event["type"]) == (entity, kind)]
    data: dict[str, Any] = event["data"]
    return data


async def lose_worker(person: Any, sandbox: str) -> None:
    """Kill the worker as the kernel might, once its agent runs."""
    await person.eventually((person.home / "sandboxes" / sandbox / "work" / "up").exists)
    os.kill(worker_of(person.home, sandbox), signal.SIGKILL)


def check_one_at_a_time(person: Any, task: str) -> None:
    """Check that no sandbox of the task was requested before the earlier one had ended."""
    live: set[str] = set()
    for event in person.unique():
        if event.get("taskid") != task or not event["type"].startswith("sandbox."):
            continue
        if event["type"] == "sandbox.requested":
            assert not live
            live.add(event["subject"])
        if event["type"] in {"sandbox.terminated", "sandbox.failed"}:
            live.discard(event["subject"])


async def test_lost_attempt_is_retried_in_a_new_sandbox(spawner: Make, person: Any) -> None:
    """The retry starts once the first sandbox is gone; the task ends like its last attempt."""
    async with spawner().running():
        task = await person.submit(SECOND_GOES_WELL, retry=AT_ONCE)
        first = (await person.reaches(task, "running")).sandbox
        await lose_worker(person, first)
        view = await person.ended(task)
        assert (view.state, view.attempt, view.error) == ("completed", 2, None)
        assert view.sandbox != first
        await person.all_gone()
    kinds = [event["type"] for event in person.unique() if event["subject"] == task]
    assert [kind for kind in kinds if kind != "task.running"] == [
        "task.submitted", "task.assigned", "task.retry_scheduled", "task.assigned", "task.completed",
    ]  # fmt: skip
    again = data_of(person, task, "task.retry_scheduled")
    assert (again["attempt"], again["error_type"], again["sandbox"]) == (1, "worker_lost", first)
    check_one_at_a_time(person, task)
    person.check_sequences()


async def long_enough(person: Any) -> int:
    """The number of seconds in which an attempt that does nothing ends on this machine with its present load."""
    began = time.monotonic()
    await person.ended(await person.submit(["true"]))
    return max(4, math.ceil(4 * (time.monotonic() - began)))


async def test_attempt_over_its_limit_is_retried(spawner: Make, person: Any) -> None:
    """The sandbox of an attempt over its limit is ended, whatever its agent does, and the attempt is retried."""
    argv = ["/bin/sh", "-c", 'test "$SANDHERD_ATTEMPT" -ge 2 || exec sleep 600']
    async with spawner().running():
        limit = await long_enough(person)
        task = await person.submit(
            argv, retry=RetryPolicy(max_attempts=20, first_delay_seconds=0), attempt_seconds=limit
        )
        view = await person.ended(task)
        assert view.state == "completed"
        assert view.attempt >= 2
        await person.all_gone()
    of_first = [event for event in person.unique() if event["subject"] == task and event["data"].get("attempt") == 1]
    assert [event["type"] for event in of_first if event["type"] != "task.running"] == [
        "task.submitted", "task.assigned", "task.timed_out", "task.retry_scheduled",
    ]  # fmt: skip
    assert of_first[-2]["data"] == {"attempt": 1, "limit_seconds": float(limit), "whole_task": False}
    assert of_first[-1]["data"]["error_type"] == "attempt_timed_out"
    check_one_at_a_time(person, task)
    person.check_sequences()


async def test_task_over_its_limit_fails(spawner: Make, person: Any) -> None:
    """Running and pending tasks over their limit fail; neither is retried."""
    async with spawner(max_sandboxes=1).running():
        blocker = await person.submit(["sleep", "600"])
        await person.reaches(blocker, "running")
        waits = await person.submit(["true"], task_seconds=1, retry=AT_ONCE)
        assert (await person.ended(waits)).error_type == "task_timed_out"
        await person.command(CancelTask(task=blocker), blocker)
        runs = await person.submit(["sleep", "600"], task_seconds=4, retry=AT_ONCE)
        assert (await person.ended(runs)).error_type == "task_timed_out"
        await person.all_gone()
    assert data_of(person, waits, "task.timed_out")["whole_task"] is True
    assert "task.assigned" not in person.types(waits)
    assert "task.retry_scheduled" not in person.types(runs)
    person.check_sequences()


async def test_task_starts_when_its_dependencies_are_completed(spawner: Make, person: Any) -> None:
    """Until its dependencies are completed, the view of a task states what it waits for."""
    async with spawner().running():
        first = await person.submit(["sh", "-c", "touch up; while ! test -e go; do sleep 0.05; done"])
        second = await person.submit(["true"], depends_on=(first,))
        running = await person.reaches(first, "running")
        view = await person.reaches(second, "pending")
        assert view.waits_for == f"{first} has to be completed (running)"
        (person.home / "sandboxes" / running.sandbox / "work" / "go").touch()
        assert (await person.ended(second)).state == "completed"
        await person.all_gone()
    changes = [event for event in person.unique() if event["type"] in {"task.completed", "task.assigned"}]
    # Events of different tasks may be published in any order; the times are those of the records.
    order = [event["subject"] for event in sorted(changes, key=lambda event: event["time"])]
    assert order == [first, first, second, second]
    person.check_sequences()


async def test_dependant_of_a_failed_task_fails(spawner: Make, person: Any) -> None:
    """Dependants of a failed task, and their dependants, fail; nothing waits for ever."""
    async with spawner().running():
        first = await person.submit(["sh", "-c", "exit 3"])
        second = await person.submit(["true"], depends_on=(first,))
        third = await person.submit(["true"], depends_on=(second,))
        for task, on in ((second, first), (third, second)):
            view = await person.ended(task)
            assert (view.state, view.error_type) == ("failed", "dependency_failed")
            assert view.error == f"its dependency {on} has failed"
            assert view.sandbox is None
    person.check_sequences()


async def test_impossible_dependencies_are_refused(spawner: Make, person: Any) -> None:
    """A dependency on a missing task, on itself, or in a cycle is refused with its reason, and nothing is stored."""
    async with spawner().running():
        await person.submit(["true"], "lonely", depends_on=("nobody",))
        await person.submit(["true"], "itself", depends_on=("itself",))
        await person.submit(["true"], "hen", depends_on=("egg",))
        await person.submit(["true"], "egg", depends_on=("hen",))
        for task in ("lonely", "itself", "hen", "egg"):
            await person.receives(task, "task.rejected")
            assert await person.task(task) is None
    reasons = {task: data_of(person, task, "task.rejected") for task in ("lonely", "itself", "hen", "egg")}
    assert {data["field"] for data in reasons.values()} == {"spec.depends_on"}
    assert "no task nobody in project p1" in reasons["lonely"]["reason"]
    assert "form a cycle: itself → itself" in reasons["itself"]["reason"]
    assert any("form a cycle" in reasons[task]["reason"] for task in ("hen", "egg"))


async def test_failed_task_is_retried_by_hand(spawner: Make, person: Any) -> None:
    """A task that failed permanently can be retried by a user; a completed task is refused with the reason."""
    async with spawner().running():
        task = await person.submit(["sh", "-c", 'test "$SANDHERD_ATTEMPT" = 2 || exit 3'])
        assert (await person.ended(task)).state == "failed"
        command = await person.command(RetryTask(task=task, requested_by="ada"), task)
        view = await person.reaches(task, "completed")
        assert (view.attempt, view.error_type) == (2, None)
        await person.bus.publish_command(command)
        await person.command(RetryTask(task=task), task)
        await person.receives(task, "task.refused")
        await person.all_gone()
    assert data_of(person, task, "task.retry_scheduled")["requested_by"] == "ada"
    refused = data_of(person, task, "task.refused")
    assert "only a failed or cancelled task" in refused["reason"]
    check_one_at_a_time(person, task)
    person.check_sequences()


async def test_waiting_retry_can_be_cancelled(spawner: Make, person: Any) -> None:
    """A cancellation is possible in every state."""
    async with spawner().running():
        task = await person.submit(SECOND_GOES_WELL, retry=RetryPolicy(max_attempts=2, first_delay_seconds=600))
        await lose_worker(person, (await person.reaches(task, "running")).sandbox)
        view = await person.reaches(task, "pending")
        assert view.attempt == 2
        await person.receives(task, "task.retry_scheduled")
        assert view.not_before == datetime.fromisoformat(data_of(person, task, "task.retry_scheduled")["not_before"])
        await person.command(CancelTask(task=task), task)
        assert (await person.ended(task)).state == "cancelled"
        await person.all_gone()
    person.check_sequences()


async def test_urgent_tasks_start_first_and_the_list_states_the_reason(spawner: Make, person: Any) -> None:
    """Within the project's limit priority decides which task starts first, not the order of submission."""
    async with spawner(max_sandboxes=3, project_limits={"p1": 1}).running():
        blocker = await person.submit(["sh", "-c", "touch up; while ! test -e go; do sleep 0.05; done"])
        running = await person.reaches(blocker, "running")
        tasks = {kind: await person.submit(["true"], kind, priority=kind) for kind in ("low", "high", "critical")}
        for task in tasks:
            await person.reaches(task, "pending")
        found = (await person.bus.ask(ListLiveTasks(state=TaskState.PENDING), "p1", timeout=PATIENCE)).tasks
        wait_reasons = {view.task: view.waits_for for view in found}
        assert wait_reasons == {
            "critical": "1 of 1 sandboxes of project p1 live; it is next",
            "high": "1 of 1 sandboxes of project p1 live; 1 task is before it",
            "low": "1 of 1 sandboxes of project p1 live; 2 tasks are before it",
        }
        by_score = sorted(found, key=lambda view: -view.score)
        assert [view.task for view in by_score] == ["critical", "high", "low"]
        (person.home / "sandboxes" / running.sandbox / "work" / "go").touch()
        for task in tasks:
            assert (await person.ended(task)).state == "completed"
        await person.all_gone()
    assigned = [event["subject"] for event in person.unique() if event["type"] == "task.assigned"]
    assert assigned == [blocker, "critical", "high", "low"]
