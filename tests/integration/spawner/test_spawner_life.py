"""The whole life of tasks and sandboxes, with a real broker, a real spawner and the real worker."""

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.service import Service
from sandherd.contracts.commands import CancelTask, Command, CommandHarness, SubmitTask, TaskSpec, TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import LiveSandboxes, LiveTasks, SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from spawner.main import compose

Eventually = Callable[..., Awaitable[Any]]
SLEEPER = ["/bin/sh", "-c", "touch up; exec sleep 600"]


class Person:
    """Somebody who gives commands, asks, and listens, in project p1."""

    def __init__(self, bus: Bus, eventually: Eventually, home: Path) -> None:
        self.bus = bus
        self.eventually = eventually
        self.home = home
        self.events: list[dict[str, Any]] = []
        self._said = 0

    async def listen(self) -> None:
        async def hear(msg: Msg) -> None:
            self.events.append(json.loads(msg.data))

        await self.bus.client.subscribe("sandherd.v1.event.p1.>", cb=hear)
        await self.bus.client.flush()

    async def command(self, data: Command, entity: str) -> Envelope[Any]:
        self._said += 1
        command = wrap(
            data, data.type, source="/sandherd/client/test", sequence=self._said, project="p1", subject=entity,
            time=datetime.now(UTC),
        )  # fmt: skip
        await self.bus.publish_command(command)
        return command

    async def submit(self, argv: list[str], task: str | None = None, **spec: Any) -> str:
        name = task or new_name("task")
        await self.command(SubmitTask(task=name, spec=spec_of(argv, **spec)), name)
        return name

    async def task(self, task: str) -> TaskView | None:
        found = (await self.bus.ask(LiveTasks(task=task), "p1")).tasks
        return found[0] if found else None

    async def ended(self, task: str) -> TaskView:
        async def look() -> TaskView | None:
            view = await self.task(task)
            return view if view and view.ended_at else None

        return await self.eventually(look, 60)

    async def reaches(self, task: str, state: str) -> TaskView:
        async def look() -> TaskView | None:
            view = await self.task(task)
            return view if view and view.state == state else None

        return await self.eventually(look)

    async def sandboxes(self) -> list[SandboxView]:
        return (await self.bus.ask(LiveSandboxes(), "p1")).sandboxes

    async def all_gone(self) -> None:
        """No sandbox lives, and nothing of any is left on the host."""

        async def look() -> bool:
            ended = all(view.state in SANDBOX_ENDED for view in await self.sandboxes())
            return ended and not list((self.home / "sandboxes").iterdir())

        await self.eventually(look, 60)

    def types(self, entity: str) -> list[str]:
        return [event["type"] for event in self.events if event["subject"] == entity]

    async def hears(self, entity: str, event_type: str) -> None:
        await self.eventually(lambda: event_type in self.types(entity))

    def check_sequences(self) -> None:
        """Every source counts from 1 without a gap, and no event came twice under another number."""
        heard: dict[str, dict[int, str]] = defaultdict(dict)
        for event in self.events:
            known = heard[event["source"]].setdefault(event["sequence"], event["id"])
            assert known == event["id"], event
        for source, numbers in heard.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), source


def spec_of(argv: list[str], **spec: Any) -> TaskSpec:
    return TaskSpec(text="do it", harness=CommandHarness(argv=argv), **spec)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def spawner(herd: Broker, home: Path) -> Callable[..., Service]:
    def make(**settings: Any) -> Service:
        return compose(herd.settings(Principal.SPAWNER, home=home, check_interval=0.2, stop_grace=5, **settings))

    return make


@pytest.fixture
async def person(herd: Broker, eventually: Eventually, home: Path) -> AsyncIterator[Person]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = Person(bus, eventually, home)
        await someone.listen()
        yield someone


Make = Callable[..., Service]


async def test_a_task_is_done(spawner: Make, person: Person) -> None:
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


async def test_a_task_that_fails_says_why(spawner: Make, person: Person) -> None:
    """The agent's exit status ends in the task's result."""
    async with spawner().running():
        view = await person.ended(await person.submit(["/bin/sh", "-c", "exit 3"]))
        assert (view.state, view.error_type, view.result["exit_code"]) == ("failed", "exit_status", 3)
        await person.all_gone()
    person.check_sequences()


async def test_a_repeated_command_is_one_task(spawner: Make, person: Person) -> None:
    """The same submission twice is one task; another under the same name is dead, and the task goes on."""
    async with spawner().running() as service:
        task = await person.submit(["true"], "task-one")
        await person.command(SubmitTask(task=task, spec=spec_of(["true"])), task)
        await person.command(SubmitTask(task=task, spec=spec_of(["false"])), task)

        async def dead() -> bool:
            return bool((await service.bus.js.stream_info("DEAD")).state.messages)

        await person.eventually(dead)
        assert (await person.ended(task)).state == "completed"
        assert person.types(task).count("task.submitted") == 1


async def test_a_task_that_can_not_be_taken_is_rejected(spawner: Make, person: Person) -> None:
    """An unknown runtime is said to whoever waits for the task; nothing of it is kept."""
    async with spawner().running():
        task = await person.submit(["true"], runtime="moon")
        await person.hears(task, "task.rejected")
        assert await person.task(task) is None
    (event,) = [event for event in person.events if event["subject"] == task]
    assert event["data"]["field"] == "spec.runtime"
    assert "process" in event["data"]["reason"]


async def test_cancel_while_it_waits(spawner: Make, person: Person) -> None:
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


async def test_cancel_while_it_runs(spawner: Make, person: Person) -> None:
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


async def test_cancel_as_soon_as_it_is_submitted(spawner: Make, person: Person) -> None:
    """Wherever the cancellation meets the task on its way, it ends cancelled and its sandbox is gone."""
    async with spawner().running():
        tasks = [await person.submit(SLEEPER) for _ in range(4)]
        for task in tasks:
            await person.command(CancelTask(task=task), task)
        assert {(await person.ended(task)).state for task in tasks} == {"cancelled"}
        await person.all_gone()
    person.check_sequences()


async def test_terminating_a_sandbox_ends_its_daemons(spawner: Make, person: Person) -> None:
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


async def test_no_more_sandboxes_than_allowed(spawner: Make, person: Person) -> None:
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
    assert assigned == tasks
    person.check_sequences()
