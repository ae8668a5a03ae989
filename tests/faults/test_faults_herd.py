"""Many tasks with failing sandboxes, and spawners that are killed repeatedly: each task ends correctly.

`make test` uses TASKS_QUICK tasks; the environment variable SANDHERD_HERD_TASKS sets another number, and `make soak`
sets it to 200.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Sized
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
from pydantic import BaseModel

from sandherd.bus.errors import BusError
from sandherd.contracts.commands import CommandHarness, RetryPolicy, SubmitTask, TaskSpec
from sandherd.contracts.requests import ListLiveSandboxes, ListLiveTasks, TaskView
from sandherd.contracts.requests.base import Request
from sandherd.contracts.states import SANDBOX_ENDED, TASK_ENDED
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings, environment_names
from sandherd.stack.broker import Broker
from tests.faults.sandbox_failures import LOST, certain_error
from tests.integration.spawner.conftest import ProjectUser
from tests.polling import eventually
from tests.preloaded_cli import preloaded_python

AnswerT = TypeVar("AnswerT", bound=BaseModel)
TASKS_QUICK = 5
TASKS = int(os.environ.get("SANDHERD_HERD_TASKS", TASKS_QUICK))
REPLICAS = 2
KILL_EVERY = 25
"""The number of events after which a spawner is killed: about two sandboxes. By time, a slow machine had more kills."""
ATTEMPTS = 3
MOMENTS = random.Random(200)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

# The kernel holds the lock as long as any process of the agent lives: no later agent may find it taken.
AGENT = f"""
exec 9>>"$MARKS/$SANDHERD_TASK_ID"
flock -n 9 || echo "$SANDHERD_SANDBOX_ID found another at work" >>"$MARKS/doubles"
echo "begin $SANDHERD_ATTEMPT" >&9
touch begun
case "$SANDHERD_SANDBOX_ID" in {"|".join(LOST)}) exec sleep 600;; esac
echo "end $SANDHERD_ATTEMPT" >&9
exit $STATUS
"""


def environment(settings: Settings) -> dict[str, str]:
    """The environment variables of a spawner with these settings."""
    named = {env.name: getattr(settings, field) for field, env in environment_names().items()
             if field in settings.model_fields_set}  # fmt: skip
    path = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, **{name: str(value) for name, value in named.items()}, "PYTHONPATH": os.pathsep.join(path)}


class Spawners:
    """Some spawners as processes; `killing` kills one after the other and replaces it."""

    def __init__(self, settings: Settings, log: Path, kill_every: int = KILL_EVERY) -> None:
        self._environment = environment(settings)
        self._kill_every = kill_every
        self._log = log
        self._living: list[asyncio.subprocess.Process] = []
        self.killed = 0

    async def start(self) -> None:
        program = (preloaded_python(), "-m", "tests.faults.herd_spawner")
        with self._log.open("ab") as log:
            self._living.append(
                await asyncio.create_subprocess_exec(*program, env=self._environment, stdout=log, stderr=log)
            )

    async def killing(self, events: Sized) -> None:
        """Kill one each time this number of further events has arrived."""
        while True:
            await self._until(events, len(events) + self._kill_every)
            await self.kill(self._living.pop(0))
            await self.start()

    @staticmethod
    async def _until(events: Sized, count: int) -> None:
        await eventually(lambda: len(events) >= count, seconds=900)

    async def kill(self, victim: asyncio.subprocess.Process) -> None:
        assert victim.returncode is None, self._log.read_text()[-3000:]
        victim.kill()
        await victim.wait()
        self.killed += 1

    async def settle(self) -> None:
        """End all normally, and start one that is not killed: a busy machine may not renew a lease of one second."""
        await self.close()
        self._living.clear()
        self._environment["HERD_LEASE_SECONDS"] = "10"
        await self.start()

    def log_text(self) -> str:
        """The end of the logs of all spawners."""
        return self._log.read_text()[-20_000:]

    async def close(self) -> None:
        for process in self._living:
            if process.returncode is None:
                process.terminate()
            await process.wait()


@pytest.fixture
async def spawners(herd: Broker, tmp_path: Path) -> AsyncIterator[Spawners]:
    settings = herd.settings(
        Principal.SPAWNER, home=tmp_path / "home", check_interval=1, stop_grace=5, isolation="none",
        max_sandboxes=8,
    )  # fmt: skip
    some = Spawners(settings, tmp_path / "log")
    try:
        yield some
    finally:
        await some.close()


@asynccontextmanager
async def being_killed(spawners: Spawners, events: Sized) -> AsyncIterator[asyncio.Task[None]]:
    for _ in range(REPLICAS):
        await spawners.start()
    killing = asyncio.create_task(spawners.killing(events))
    try:
        yield killing
    finally:
        killing.cancel()
        await asyncio.wait([killing])
        if not killing.cancelled():
            killing.result()


def task_spec(number: int, marks: Path) -> TaskSpec:
    """The specification of a task; every tenth task fails by itself, and is not retried for that."""
    return TaskSpec(
        text=f"task {number}",
        harness=CommandHarness(argv=["/bin/sh", "-c", AGENT]),
        env={"MARKS": str(marks), "STATUS": "3" if number % 10 == 9 else "0"},
        retry=RetryPolicy(max_attempts=ATTEMPTS, first_delay_seconds=0.2),
    )


async def reply(person: ProjectUser, request: Request[AnswerT]) -> AnswerT:
    """The reply of a spawner; the request is repeated if a killed spawner has received it."""

    async def once() -> AnswerT | None:
        with suppress(BusError):
            return await person.bus.ask(request, "p1", timeout=5)
        return None

    found: AnswerT = await eventually(once)
    return found


async def all_tasks(person: ProjectUser) -> list[TaskView]:
    found: list[TaskView] = []
    cursor = None
    while True:
        page = await reply(person, ListLiveTasks(limit=100, cursor=cursor))
        found += page.tasks
        cursor = page.next_cursor
        if cursor is None:
            return found


def earned(view: TaskView, number: int) -> tuple[str, str | None]:
    """The expected end of the task's last attempt, by the faults of its sandbox and its agent."""
    assert view.sandbox
    fault = certain_error(view.sandbox) or ("exit_status" if number % 10 == 9 else None)
    return ("failed", fault) if fault else ("completed", None)


def left_on_the_host(home: Path) -> list[int]:
    """Every process that any of these sandboxes has left."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(home) in process.environ().get("SANDHERD_STATE_DIR", ""):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


async def test_all_tasks_end_in_the_right_state(spawners: Spawners, herd: Broker, tmp_path: Path) -> None:
    """Each task ends in the state of its last attempt; none runs twice at once; nothing is left of any."""
    home, marks = tmp_path / "home", tmp_path / "marks"
    marks.mkdir()
    async with herd.bus(Principal.CLIENT, project="p1") as bus:
        person = ProjectUser(bus, eventually, home)
        await person.listen()
        async with being_killed(spawners, person.events) as killing:
            for number in range(TASKS):
                await person.command(SubmitTask(task=f"task-{number}", spec=task_spec(number, marks)), f"task-{number}")
            await eventually(lambda: _ended(person) >= TASKS or killing.done(), seconds=900)
        await spawners.settle()
        await person.all_gone()
        views = await eventually(lambda: _all_ended(person))
        sandboxes = await eventually(lambda: _all_sandboxes_ended(person))
        await eventually(lambda: _terminated(person) >= len(sandboxes))
    check_tasks(views)
    assert not (marks / "doubles").exists(), (marks / "doubles").read_text()
    check_marks(views, marks)
    assert left_on_the_host(home) == []
    assert not [event for event in person.events if "orphan" in event["type"]]
    person.check_sequences()
    print(f"{spawners.killed} spawners were killed, {len(sandboxes)} sandboxes were made")


def check_tasks(views: dict[str, TaskView]) -> None:
    assert sorted(views) == sorted(f"task-{number}" for number in range(TASKS))
    for number in range(TASKS):
        view = views[f"task-{number}"]
        assert view.state in TASK_ENDED
        assert (view.state.value, view.error_type) == earned(view, number), view
        again = view.error_type == "worker_lost"
        assert view.attempt == ATTEMPTS if again else view.attempt <= ATTEMPTS


def check_marks(views: dict[str, TaskView], marks: Path) -> None:
    """Check that each attempt's agent began at most once, and that each completed task's has reached its end."""
    for task, view in views.items():
        lines = (marks / task).read_text().splitlines() if (marks / task).exists() else []
        begun = Counter(line for line in lines if line.startswith("begin"))
        assert all(count == 1 for count in begun.values()), (task, lines)
        if view.state == "completed":
            assert lines[-1] == f"end {view.attempt}"


async def _all_ended(person: ProjectUser) -> dict[str, TaskView] | None:
    """The tasks, once the spawner that replies knows that each has ended: one that has just started may not yet."""
    views = {view.task: view for view in await all_tasks(person)}
    return views if len(views) == TASKS and all(view.state in TASK_ENDED for view in views.values()) else None


async def _all_sandboxes_ended(person: ProjectUser) -> list[Any] | None:
    """The sandboxes with events, once the spawner that replies knows that each has ended."""
    views = await _sandboxes(person)
    return views if len(views) >= _made(person) and all(view.state in SANDBOX_ENDED for view in views) else None


def _made(person: ProjectUser) -> int:
    return len({event["subject"] for event in person.events if event["type"] == "sandbox.requested"})


def _ended(person: ProjectUser) -> int:
    ends = {"task.completed", "task.failed"}
    return len({event["subject"] for event in person.events if event["type"] in ends})


def _terminated(person: ProjectUser) -> int:
    ends = {"sandbox.terminated", "sandbox.failed"}
    return len({event["subject"] for event in person.events if event["type"] in ends})


async def _sandboxes(person: ProjectUser) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while True:
        page = await reply(person, ListLiveSandboxes(limit=100, cursor=cursor))
        found += page.sandboxes
        cursor = page.next_cursor
        if cursor is None:
            return found
