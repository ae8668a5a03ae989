"""Projects have their own limits and defaults: in effect at once, for new tasks only, and set only by operators."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.cli.exit_status import run_command
from sandherd.client import Herd
from sandherd.client.context import Context
from sandherd.contracts.commands import RetryTask, SubmitTask, TaskSpec
from sandherd.contracts.requests import ListLiveTasks, ListProjects, ProjectDefaults, ProjectLimits, SetProject
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.tasks.queue_updates import follow
from tests.integration.spawner.bucket_follower import following
from tests.integration.spawner.file_thief import context_of
from tests.patience import PATIENCE

Make = Callable[..., Service]
UNTIL_RELEASED = ["/bin/sh", "-c", "touch ok; while [ ! -e go ]; do sleep .05; done"]


@pytest.fixture
async def operator(herd: Broker) -> AsyncIterator[Bus]:
    async with herd.bus(Principal.OPERATOR) as bus:
        yield bus


def operators(herd: Broker, project: str) -> Context:
    """An operator's connection to a project."""
    return replace(context_of(herd), credentials=herd.credentials(Principal.OPERATOR), project=project)


async def set_limits(operator: Bus, project: str, **limits: int) -> Any:
    request = SetProject(new=True, limits=ProjectLimits(**limits))
    return await operator.ask(request, project)


async def at_work(person: Any, *tasks: str) -> list[str]:
    """Wait for the tasks that have a sandbox; returns them."""
    views = [await person.try_task(task) for task in tasks]
    return [view.task for view in views if view and view.state == "running"]


def let_go(person: Any, sandbox: str) -> None:
    (person.home / "sandboxes" / sandbox / "work" / "go").touch()


async def test_limit_of_tasks_is_in_effect_without_restart(spawner: Make, person: Any, operator: Bus) -> None:
    """A waiting task shows the limit and starts once it is raised; once it is lowered, no later task starts."""
    async with spawner().running():
        await set_limits(operator, "p1", tasks=1)
        first, second = await person.submit(UNTIL_RELEASED), await person.submit(UNTIL_RELEASED)
        (running,) = await person.eventually(lambda: at_work(person, first, second))
        waiting = await person.task(second if running == first else first)
        assert "1 of 1 tasks of project p1 at work" in (waiting.waits_for or "")
        sandbox = await person.create()
        await person.sandbox_is(sandbox, "running")
        view = await operator.ask(SetProject(limits=ProjectLimits(tasks=2)), "p1")
        assert (view.tasks.maximum, view.tasks.source) == (2, "project")
        assert (view.tasks.used, view.sandboxes.used) in {(1, 2), (2, 3)}  # the second task may just have begun
        await person.eventually(lambda: both(person, first, second))
        await operator.ask(SetProject(limits=ProjectLimits(tasks=0)), "p1")
        third = await person.submit(["true"])
        for task in (first, second):
            let_go(person, (await person.task(task)).sandbox)
            await person.receives(task, "task.completed")
        assert (await person.task(third)).state == "pending"
        await operator.ask(SetProject(unset=["tasks"]), "p1")
        await person.receives(third, "task.completed")


async def both(person: Any, *tasks: str) -> bool:
    return len(await at_work(person, *tasks)) == len(tasks)


async def test_other_replicas_receive_a_limit(spawner: Make, person: Any, operator: Bus, herd: Broker) -> None:
    """Replicas that did not reply to the request also apply a project's limit, and remove it again."""
    full = "the limit of tasks of project p1 is 0; raise it with `sandherd projects set p1 --tasks N`"
    async with spawner().running(), herd.bus(Principal.SPAWNER) as bus:
        other = LiveState(bus, Meters(CollectorRegistry()))
        queue = follow(other, herd.settings(Principal.SPAWNER))
        async with following(other):
            await set_limits(operator, "p1", tasks=0)
            await person.eventually(lambda: queue.capacity.exhausted_limit("p1", "process") == full)
            await operator.ask(SetProject(unset=["tasks"]), "p1")
            await person.eventually(lambda: queue.capacity.exhausted_limit("p1", "process") is None)


async def test_limit_of_sandboxes_overrides_the_setting_and_not_the_herds(
    spawner: Make, person: Any, operator: Bus
) -> None:
    """A project's record precedes `project_limits`, but can't exceed `max_sandboxes`; other projects are unaffected."""
    async with spawner(max_sandboxes=3, project_limits={"p1": 0, "p2": 0}).running():
        task = await person.submit(["true"])
        await person.receives(task, "task.submitted")
        shown = (await operator.ask(ListProjects(), "p1")).projects[0]
        assert (shown.sandboxes.maximum, shown.sandboxes.source, shown.created_at) == (0, "project_limits", None)
        with pytest.raises(Exception, match="at most 3 are allowed here"):
            await set_limits(operator, "p1", sandboxes=4)
        view = await set_limits(operator, "p1", sandboxes=2)
        assert (view.sandboxes.maximum, view.sandboxes.source) == (2, "project")
        await person.receives(task, "task.completed")
        listed = (await operator.ask(ListProjects(), "fleet")).projects
        assert [(one.project, one.sandboxes.maximum) for one in listed] == [("p1", 2), ("p2", 0)]


async def test_defaults_apply_to_new_tasks_only(spawner: Make, person: Any, operator: Bus, herd: Broker) -> None:
    """Defaults are resolved at submission: a change affects no repeated command and no retry of an old task."""
    shows = ["/bin/sh", "-c", "exit 3"]
    async with spawner().running():
        old = ProjectDefaults(memory_mb=300, cores=0.5, attempt_seconds=100)
        await operator.ask(SetProject(new=True, defaults=old), "p1")
        task = await person.submit(shows, task="task-one")
        await person.receives(task, "task.failed")
        new = ProjectDefaults(memory_mb=400, attempt_seconds=200)
        await operator.ask(SetProject(defaults=new, unset=["cores"]), "p1")
        await person.submit(shows, task="task-one")
        again = await person.submit(["true"], task="task-two")
        await person.receives(again, "task.completed")
        await person.command(RetryTask(task=task), task)
        await person.eventually(lambda: attempt_of(person, task, 2))
        assert not [event for event in person.events if event["type"] == "task.refused"]
        first, second = await records(herd, "task-one", "task-two")
        assert (first["limits"]["memory_mb"], first["limits"]["cores"], first["attempt_seconds"]) == (300, 0.5, 100)
        assert (second["limits"]["memory_mb"], second["limits"].get("cores"), second["attempt_seconds"]) == (
            400,
            None,
            200,
        )
        assert "limits" not in first["spec"]
        plain = await person.submit(["true"], limits={"memory_mb": 500}, attempt_seconds=50)
        await person.receives(plain, "task.submitted")
        (third,) = await records(herd, plain)
        assert (third["limits"]["memory_mb"], third["attempt_seconds"]) == (500, 50)


async def attempt_of(person: Any, task: str, attempt: int) -> bool:
    view = await person.try_task(task)
    return view is not None and view.attempt == attempt and view.ended_at is not None


async def records(herd: Broker, *tasks: str) -> list[dict[str, Any]]:
    """The stored records of tasks of project p1."""
    async with herd.bus(Principal.SPAWNER) as bus:
        found = [await bus.js.get_last_msg("KV_tasks", f"$KV.tasks.p1.{task}") for task in tasks]
    return [json.loads(message.data or b"") for message in found]


async def test_default_harness_is_for_tasks_that_name_none(spawner: Make, person: Any, operator: Bus) -> None:
    """A task without a harness is rejected, or gets the default kind and model if there is one; a named one stays."""
    unnamed = TaskSpec.model_validate({"text": "do it", "harness": {"kind": "default"}})
    async with spawner().running():
        await person.command(SubmitTask(task="task-a", spec=unnamed), "task-a")
        await person.receives("task-a", "task.rejected")
        assert "project p1 has no default harness" in person.event_data("task-a", "task.rejected")["reason"]
        for kind, why in (("wizard", "there is no harness 'wizard' here"), ("acp", "can't be a default")):
            with pytest.raises(Exception, match=why):
                await operator.ask(SetProject(new=True, defaults=ProjectDefaults(harness=kind)), "p1")
        given = ProjectDefaults(harness="claude", model="model-one")
        await operator.ask(SetProject(new=True, limits=ProjectLimits(tasks=0), defaults=given), "p1")
        await person.command(SubmitTask(task="task-b", spec=unnamed), "task-b")
        await person.receives("task-b", "task.submitted")
        assert person.event_data("task-b", "task.submitted")["harness"] == "claude"
        assert (await person.task("task-b")).harness == "claude"
        wrong = TaskSpec.model_validate({"text": "do it", "harness": {"kind": "default", "argv": ["x"]}})
        await person.command(SubmitTask(task="task-c", spec=wrong), "task-c")
        await person.receives("task-c", "task.rejected")
        assert "argv" in person.event_data("task-c", "task.rejected")["field"]
        await person.submit(["true"], task="task-d")
        await person.receives("task-d", "task.submitted")
        assert person.event_data("task-d", "task.submitted")["harness"] == "command"


async def test_projects_are_independent(spawner: Make, person: Any, operator: Bus, herd: Broker) -> None:
    """A full project does not delay another, and each has its own defaults."""
    async with spawner().running(), Herd.connect(operators(herd, "p2")) as bob:
        await operator.ask(
            SetProject(new=True, limits=ProjectLimits(tasks=0), defaults=ProjectDefaults(memory_mb=300)), "p1"
        )
        await person.submit(["true"], task="task-one")
        other = await bob.submit("do it", ["true"])
        await person.eventually(lambda: completed(operator, other))
        assert (await person.task("task-one")).state == "pending"
        views = {view.project: view for view in (await operator.ask(ListProjects(), "fleet")).projects}
        assert (views["p1"].pending, views["p1"].tasks.maximum, views["p1"].defaults.memory_mb) == (1, 0, 300)
        assert (views["p2"].created_at, views["p2"].tasks.source) == (None, "max_sandboxes")


async def completed(operator: Bus, task: str) -> bool:
    found = (await operator.ask(ListLiveTasks(task=task), "p2")).tasks
    return [view.state for view in found] == ["completed"]


async def test_only_an_operator_changes_a_project(spawner: Make, operator: Bus, herd: Broker) -> None:
    """A client may show its own; no one else may read, change or overwrite a record."""
    async with spawner().running():
        await set_limits(operator, "p1", tasks=1)
        change = SetProject(limits=ProjectLimits(tasks=9)).model_dump_json().encode()
        for principal in (
            Principal.CLIENT,
            Principal.SUBSCRIBER,
            Principal.WORKER,
            Principal.MONITOR,
            Principal.EVENT_INGEST,
            Principal.MESSAGE_RELAY,
        ):
            async with herd.bus(principal, project="p1", sandbox="sbx-1") as bus:
                await unheard(bus, request_subject("spawner.set_project", "p1"), change)
                await unheard(bus, "$KV.projects.p1", b"{}")
                if principal is not Principal.CLIENT:
                    await unheard(bus, request_subject("spawner.projects", "p1"), b"{}")
                    continue
                await unheard(bus, request_subject("spawner.projects", "p2"), b"{}")
                await unheard(bus, request_subject("spawner.projects", "fleet"), b"{}")
                assert (await bus.ask(ListProjects(), "p1")).projects[0].tasks.maximum == 1


async def test_commands_create_change_and_show(
    spawner: Make, person: Any, herd: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Create can be repeated, set needs a project, and show has the limits with their sources, the use and users."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    context = operators(herd, "p1")
    place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]

    async def run(*words: str) -> tuple[int, str, str]:
        status = await asyncio.to_thread(run_command, [*place, "projects", *words])
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    async with spawner().running():
        status, _, err = await run("set", "p1", "--tasks", "2")
        assert (status, "sandherd projects create p1" in err) == (1, True)
        given = ("--tasks", "2", "--memory", "1g", "--attempt-timeout", "10m", "--model", "model-one")
        for found in ("is created", "already exists, unchanged"):
            assert await run("create", "p1", *given) == (0, f"project p1 {found}\n", "")
        status, _, err = await run("create", "p1", "--tasks", "3")
        assert (status, "already exists" in err) == (1, True)
        assert (await run("set", "p1", "--sandboxes", "3", "--unset", "model"))[0] == 0
        spec = person.spec(["true"])
        await person.command(SubmitTask(task="task-one", spec=spec, submitted_by="ada"), "task-one")
        await person.receives("task-one", "task.completed")
        shown = json.loads((await run("show", "p1", "-o", "json"))[1])
        assert (shown["tasks"]["maximum"], shown["sandboxes"]["maximum"]) == (2, 3)
        assert shown["defaults"] == {"memory_mb": 1024, "attempt_seconds": 600}
        assert (shown["users"], shown["cost_micro_usd"]) == (["ada"], None)
        text = (await run("show", "p1"))[1]
        assert "of 2 (limit of the project)" in text
        assert "p1" in (await run("list"))[1]
        status, _, err = await run("set", "p1", "--unset", "nothing")
        assert (status, "unset" in err) == (2, True)


async def unheard(bus: Bus, subject: str, data: bytes) -> None:
    """Check that the broker does not deliver this message."""
    before = bus.violations
    await bus.client.publish(subject, data)
    for _ in range(2):  # nats-py writes a flush's PING before the messages that it still has to send
        await bus.client.flush(timeout=PATIENCE)
    assert bus.violations == before + 1, subject
