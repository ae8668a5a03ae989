"""Fixtures of the spawner's tests, among them a process runtime whose worker is a few lines of Python."""

import json
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus, BusError, RequestTimeoutError
from sandherd.contracts.commands import (
    Command,
    CommandHarness,
    CreateSandbox,
    SandboxLimits,
    SandboxSpec,
    SubmitTask,
    TaskSpec,
)
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import Exec, ListLiveSandboxes, ListLiveTasks, SandboxView, TaskView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from sandherd.telemetry import logs
from spawner.main import compose
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.factory import WORKER, ProcessRuntimeOptions, open_runtime
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.file_thief import Thief
from tests.patience import PATIENCE
from tests.polling import eventually
from tests.shared_broker import herd

__all__ = ["herd"]

Open = Callable[..., Awaitable[ProcessRuntime]]


Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]


@pytest.fixture(name="eventually")
def _eventually() -> Eventually:
    return eventually


@pytest.fixture(name="plan_for")
def _plan_for() -> PlanFor:
    return plan_for


def plan_for(sandbox: str, **limits: int) -> SandboxPlan:
    return SandboxPlan(
        project="p1",
        sandbox=sandbox,
        unit=sandbox,
        task="task-1",
        attempt=1,
        fence=7,
        spec=TaskSpec(text="do it", harness=CommandHarness(argv=["true"])),
        limits=SandboxLimits(**limits),
        joiner="the joiner's secret",
        nats_url="nats://127.0.0.1:1",
        heartbeat_interval=30,
        stop_grace=5,
    )


@pytest.fixture
async def home(tmp_path: Path) -> AsyncIterator[Path]:
    """A spawner's home; sandboxes that a test leaves in it are ended."""
    folder = tmp_path / "home"
    yield folder
    await end_sandboxes(folder)


async def end_sandboxes(home: Path) -> None:
    """End the sandboxes that a spawner with this home has left, as it does when it ends."""
    runtime = await open_runtime(
        ProcessRuntimeOptions(root=home / "sandboxes", quarantine=home / "kept", isolation="none")
    )
    for seen in await runtime.find_all():
        await runtime.remove(seen.unit)
    await runtime.close()


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logs.configure("test", "info")


@pytest.fixture
async def open_process(tmp_path: Path) -> AsyncIterator[Open]:
    """Opens process runtimes whose worker runs the given code; all of their processes are ended after the test."""
    opened: list[ProcessRuntime] = []

    async def open_it(code: str, isolation: str = "bubblewrap", **options: Any) -> ProcessRuntime:
        runtime = await open_runtime(
            ProcessRuntimeOptions(
                root=tmp_path / "stack" / "sandboxes",
                quarantine=tmp_path / "stack" / "kept",
                hidden=(tmp_path / "stack",),
                isolation=isolation,  # type: ignore[arg-type]  # one of the three
                worker=(sys.executable, "-P", "-c", code),
                **options,
            )
        )
        opened.append(runtime)
        return runtime

    yield open_it
    for runtime in opened:
        for seen in await runtime.find_all():
            await runtime.remove(seen.unit)
        await runtime.close()
        assert not any(parent.exists() for parent in runtime.groups.parents())


class ProjectUser:
    """A user who sends commands and requests, and receives events, in a project."""

    def __init__(self, bus: Bus, eventually: Eventually, home: Path, project: str = "p1") -> None:
        self.bus, self.project = bus, project
        self.eventually = eventually
        self.home = home
        self.events: list[dict[str, Any]] = []
        self._published = 0
        self._wait = 1.0

    async def _try(self, request: Any) -> Any:
        """The reply, or None while no spawner replies: one that was killed may have taken the request.

        Each time-out makes the next one longer: on a busy machine a reply may take that long.
        """
        try:
            found = await self.bus.ask(request, self.project, timeout=self._wait)
        except RequestTimeoutError:
            self._wait = min(10.0, 2 * self._wait)
            return None
        except BusError:
            return None
        self._wait = 1.0
        return found

    async def listen(self) -> None:
        async def receive(msg: Msg) -> None:
            self.events.append(json.loads(msg.data))

        await self.bus.client.subscribe(f"sandherd.v1.event.{self.project}.>", cb=receive)
        await self.bus.flush(timeout=PATIENCE)

    async def command(self, data: Command, entity: str) -> Envelope[Any]:
        self._published += 1
        command = wrap(
            data, data.type, source="/sandherd/client/test", sequence=self._published, project=self.project,
            subject=entity, time=datetime.now(UTC),
        )  # fmt: skip
        await self.bus.publish_command(command)
        return command

    @staticmethod
    def spec(argv: list[str], **spec: Any) -> TaskSpec:
        return TaskSpec(text="do it", harness=CommandHarness(argv=argv), **spec)

    async def submit(self, argv: list[str], task: str | None = None, **spec: Any) -> str:
        name = task or new_name("task")
        await self.command(SubmitTask(task=name, spec=self.spec(argv, **spec)), name)
        return name

    async def create(self, sandbox: str | None = None, **spec: Any) -> str:
        """Request a sandbox without a task."""
        name = sandbox or new_name("sbx")
        await self.command(CreateSandbox(sandbox=name, spec=SandboxSpec(**spec)), name)
        return name

    async def sandbox(self, sandbox: str, timeout: float = PATIENCE) -> SandboxView | None:
        """The current view of a sandbox."""
        found = (await self.bus.ask(ListLiveSandboxes(sandbox=sandbox), self.project, timeout=timeout)).sandboxes
        return found[0] if found else None

    async def try_sandbox(self, sandbox: str) -> SandboxView | None:
        """The current view of a sandbox, or None while no spawner replies."""
        found = await self._try(ListLiveSandboxes(sandbox=sandbox))
        return found.sandboxes[0] if found and found.sandboxes else None

    async def sandbox_is(self, sandbox: str, state: str) -> SandboxView:
        """Wait until the sandbox is in this state."""

        async def look() -> SandboxView | None:
            view = await self.try_sandbox(sandbox)
            return view if view and view.state == state else None

        found: SandboxView = await self.eventually(look)
        return found

    async def touch(self, sandbox: str, name: str) -> None:
        """Make a file in the sandbox's work tree through its worker; its agent may wait for the file."""
        command = Exec(sandbox=sandbox, exec=new_name("exc"), command=["touch", name])
        await self.bus.ask(command, self.project, timeout=PATIENCE)

    def event_data(self, entity: str, event_type: str) -> dict[str, Any]:
        """The data of the first event of a type about an entity."""
        return next(e["data"] for e in self.events if e["subject"] == entity and e["type"] == event_type)

    async def task(self, task: str, timeout: float = PATIENCE) -> TaskView | None:
        found = (await self.bus.ask(ListLiveTasks(task=task), self.project, timeout=timeout)).tasks
        return found[0] if found else None

    async def try_task(self, task: str) -> TaskView | None:
        """The current view of a task, or None while no spawner replies."""
        found = await self._try(ListLiveTasks(task=task))
        return found.tasks[0] if found and found.tasks else None

    async def ended(self, task: str) -> TaskView:
        async def look() -> TaskView | None:
            view = await self.try_task(task)
            return view if view and view.ended_at else None

        found: TaskView = await self.eventually(look)
        return found

    async def reaches(self, task: str, state: str) -> TaskView:
        """Wait until the task is in this state, or has ended and an event states that it was in this state."""

        async def look() -> TaskView | None:
            view = await self.try_task(task)
            passed = view and view.ended_at and f"task.{state}" in self.types(task)
            return view if view and (view.state == state or passed) else None

        found: TaskView = await self.eventually(look)
        return found

    def unique(self) -> list[dict[str, Any]]:
        """The events without repetitions: a subscriber may get one twice after a crash; the broker stores it once."""
        return list({event["id"]: event for event in self.events}.values())

    async def sandboxes(self, timeout: float = PATIENCE) -> list[SandboxView]:
        return (await self.bus.ask(ListLiveSandboxes(), self.project, timeout=timeout)).sandboxes

    async def all_gone(self) -> None:
        """Wait until no sandbox lives, and nothing of any sandbox is left on the host."""
        living: list[str] = []
        left = self.home / "sandboxes"

        async def look() -> bool:
            found = await self._try(ListLiveSandboxes())
            if found is None:
                return False
            living[:] = [view.sandbox for view in found.sandboxes if view.state not in SANDBOX_ENDED]
            return not living and not list(left.iterdir())

        await self.eventually(look, lambda: f"{living} live; {[path.name for path in left.iterdir()]} are left")

    def types(self, entity: str) -> list[str]:
        return [event["type"] for event in self.events if event["subject"] == entity]

    async def receives(self, entity: str, event_type: str) -> None:
        await self.eventually(lambda: event_type in self.types(entity))

    def check_sequences(self) -> None:
        """Check that every source counts from 1 without a gap, and that no event came twice under different numbers."""
        received: dict[str, dict[int, str]] = defaultdict(dict)
        for event in self.events:
            known = received[event["source"]].setdefault(event["sequence"], event["id"])
            assert known == event["id"], event
        for source, numbers in received.items():
            assert sorted(numbers) == list(range(1, len(numbers) + 1)), source


@pytest.fixture
def spawner(herd: Broker, home: Path) -> Callable[..., Service]:
    def make(worker: tuple[str, ...] = WORKER, **settings: Any) -> Service:
        settings = {"home": home, "check_interval": 0.5, "stop_grace": 5, "max_attempts": 1, **settings}
        return compose(herd.settings(Principal.SPAWNER, **settings), worker)

    return make


@pytest.fixture
async def person(herd: Broker, eventually: Eventually, home: Path) -> AsyncIterator[ProjectUser]:
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        someone = ProjectUser(bus, eventually, home)
        await someone.listen()
        yield someone


@pytest.fixture
def thief(herd: Broker, home: Path) -> Thief:
    return Thief(herd, home)
