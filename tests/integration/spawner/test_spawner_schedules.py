"""Schedules on real services: each due time starts at most one task, by policy, and only for its project."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from sandherd.bus.connection import Bus, BusError
from sandherd.cli.exit_status import run_command
from sandherd.client import Herd
from sandherd.client.errors import HerdError
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.requests import ListSchedules, ScheduleView, SetSchedule
from sandherd.contracts.schedules import Overlap, ScheduleSpec
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.live_state import utc_now
from spawner.main import compose
from spawner.runtimes.factory import WORKER
from tests.integration.spawner.file_thief import CANARY, context_of
from tests.integration.spawner.spawner_environment import environment
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_python

DYING = Path(__file__).with_name("dying_spawner.py")
SLEEPER = ["/bin/sh", "-c", "exec sleep 600"]
OPTIONS: dict[str, Any] = {"check_interval": 0.2, "stop_grace": 5, "max_attempts": 1, "spawn_timeout": 900.0}
Sandherd = Callable[..., Awaitable[tuple[int, str, str]]]


class Clock:
    """The clock of a spawner, which a test advances."""

    def __init__(self) -> None:
        self.ahead = timedelta(0)

    def __call__(self) -> datetime:
        return utc_now() + self.ahead

    def put_to(self, moment: datetime) -> None:
        self.ahead = moment - utc_now()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scheduling(herd: Broker, home: Path, clock: Clock) -> Callable[[], Service]:
    """A spawner with this clock."""
    return lambda: compose(herd.settings(Principal.SPAWNER, home=home, **OPTIONS), WORKER, clock=clock)


@pytest.fixture
def sandherd(herd: Broker, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Sandherd:
    """Run the command as a user of project p1."""
    monkeypatch.setattr("sandherd.telemetry.logs.configure", lambda *_: None)
    context = context_of(herd)
    place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]

    async def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        status = await asyncio.to_thread(run_command, [*place, "schedules", *words])
        shown = capsys.readouterr()
        return status, "".join(line for line in shown.out.splitlines(True) if "] " not in line), shown.err

    return run


def spec(*argv: str, **more: Any) -> TaskSpec:
    return TaskSpec(text="do it", harness=CommandHarness(argv=list(argv or ["true"])), **more)


async def due(alice: Herd, name: str, clock: Clock) -> datetime:
    """Advance the clock to just after the schedule's next due time."""
    moment = (await alice.schedule(name)).next_times[0]
    clock.put_to(moment + timedelta(seconds=1))
    return moment


async def decided(person: Any, alice: Herd, name: str, moment: datetime) -> ScheduleView:
    """Wait until this due time has an outcome; returns the schedule."""

    async def look() -> ScheduleView | None:
        view = await alice.schedule(name)
        return view if any(run.due_at == moment for run in view.runs) else None

    found: ScheduleView = await person.eventually(look)
    return found


async def test_due_time_starts_a_task_of_a_schedule_that_a_command_created(
    scheduling: Callable[[], Service], person: Any, herd: Broker, clock: Clock, sandherd: Sandherd
) -> None:
    """A due task has the schedule's labels and the options of `run`; the schedule is listed and shown with its run."""
    async with scheduling().running(), Herd.connect(context_of(herd)) as alice:
        create = ["create", "nightly", "--cron", "0 3 * * *", "--time-zone", "Europe/Berlin"]
        options = ["--", "count", "--label", "team=web", "--attempts", "1", "--", "/bin/sh", "-c", "echo one"]
        status, out, err = await sandherd(*create, *options)
        assert (status, err) == (0, ""), err
        assert out.startswith("schedule nightly is due next at ")
        status, _, err = await sandherd(*create, *options)
        assert (status, "replace it with --replace" in err) == (1, True)
        moment = await due(alice, "nightly", clock)
        view = await decided(person, alice, "nightly", moment)
        task = f"nightly-{moment:%Y%m%dt%H%Mz}"
        assert [(run.outcome, run.task, run.triggered) for run in view.runs] == [("started", task, False)]
        ended = await person.ended(task)
        assert (ended.state, ended.labels["team"]) == ("completed", "web")
        assert ended.labels["sandherd/batch"] == "schedule-nightly"
        listed = json.loads((await sandherd("list", "-o", "json"))[1])["schedules"]
        assert [(one["name"], len(one["runs"]), one.get("task")) for one in listed] == [("nightly", 1, None)]
        assert task in (await sandherd("show", "nightly"))[1]
        await person.all_gone()
    assert len([event for event in person.unique() if event["type"] == "task.submitted"]) == 1


async def test_schedule_is_paused_triggered_resumed_and_deleted_by_commands(
    scheduling: Callable[[], Service], person: Any, herd: Broker, clock: Clock, sandherd: Sandherd, tmp_path: Path
) -> None:
    """A paused schedule starts tasks only when triggered, and catches up nothing when it is resumed."""
    file = tmp_path / "task.yaml"
    file.write_text("tasks: [{name: one, text: count, argv: ['true'], labels: {team: web}}]")
    async with scheduling().running(), Herd.connect(context_of(herd)) as alice:
        assert (await sandherd("create", "nightly", "--cron", "0 3 * * *", str(file)))[0] == 0
        moment = (await alice.schedule("nightly")).next_times[0]
        assert (await sandherd("pause", "nightly"))[1] == "schedule nightly is paused\n"
        clock.put_to(moment + timedelta(seconds=5))
        status, triggered, _ = await sandherd("trigger", "nightly")
        assert status == 0
        ended = await person.ended(triggered.strip())
        assert (ended.state, ended.labels["team"]) == ("completed", "web")
        status, out, _ = await sandherd("resume", "nightly", "-o", "json")
        assert datetime.fromisoformat(json.loads(out)["next_times"][0]) == moment + timedelta(days=1)
        assert "started (triggered)" in (await sandherd("show", "nightly"))[1]
        assert (await sandherd("delete", "nightly"))[0] == 0
        assert (await sandherd("show", "nightly"))[0] == 1
        await person.all_gone()
    assert len([event for event in person.unique() if event["type"] == "task.submitted"]) == 1


OVERLAPS: Final[tuple[tuple[str, Overlap], ...]] = (
    ("skips", "skip"),
    ("cancels", "cancel_other"),
    ("waits", "buffer_one"),
    ("allows", "allow"),
)


async def test_overlap_policy_applies_while_a_task_runs(
    scheduling: Callable[[], Service], person: Any, herd: Broker, clock: Clock
) -> None:
    """By its policy the second due time is skipped, cancels the first task, waits for it, or starts a second one."""
    async with scheduling().running(), Herd.connect(context_of(herd)) as alice:
        for name, overlap in OVERLAPS:
            await check_overlap(person, alice, clock, name, overlap)
            await alice.delete_schedule(name)
        await person.all_gone()


async def check_overlap(person: Any, alice: Herd, clock: Clock, name: str, overlap: Overlap) -> None:
    """Check two due times of a schedule with this policy; its tasks are cancelled at the end."""
    await alice.create_schedule(name, spec(*SLEEPER), cron="*/10 * * * *", overlap=overlap)
    first = (await decided(person, alice, name, await due(alice, name, clock))).runs[0].task
    moment = await due(alice, name, clock)
    second = f"{name}-{moment:%Y%m%dt%H%Mz}"
    if overlap == "buffer_one":

        async def waits() -> bool:
            return (await alice.schedule(name)).waiting == moment

        await person.eventually(waits)
        await alice.cancel(first or "")
    view = await decided(person, alice, name, moment)
    assert view.runs[0].outcome == ("skipped" if overlap == "skip" else "started")
    state = (await person.task(first)).state
    assert (state == "cancelled") == (overlap in {"cancel_other", "buffer_one"})
    assert view.running == ([first] if overlap == "skip" else [first, second] if overlap == "allow" else [second])
    await alice.cancel_all(batch=f"schedule-{name}")


@pytest.fixture
async def start(herd: Broker, home: Path, tmp_path: Path) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts a spawner as a separate process, which is killed at its n-th act, with its clock set."""
    started: list[asyncio.subprocess.Process] = []
    settings = herd.settings(Principal.SPAWNER, home=home, **OPTIONS)

    async def start_it(last: int, moment: datetime) -> asyncio.subprocess.Process:
        ahead = str((moment - utc_now()).total_seconds())
        with (tmp_path / "log").open("ab") as log:
            words = [str(preloaded_python()), str(DYING), str(last), "KILL", ahead]
            process = await asyncio.create_subprocess_exec(*words, env=environment(settings), stderr=log)
        started.append(process)
        return process

    yield start_it
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.faults
@pytest.mark.parametrize(
    "acts", [(2, 4, 7), pytest.param(tuple(range(1, 12)), marks=pytest.mark.long)], ids=["some acts", "each act"]
)
async def test_each_due_time_starts_one_task_whenever_the_spawner_is_killed(
    acts: tuple[int, ...],
    scheduling: Callable[[], Service],
    start: Callable[..., Any],
    person: Any,
    herd: Broker,
    clock: Clock,
    tmp_path: Path,
) -> None:
    """A spawner is killed before and after writes and events around a due time: the next one starts what is missing."""
    async with Herd.connect(context_of(herd)) as alice:
        async with scheduling().running():
            clock.put_to(datetime(2026, 12, 1, 12, 0, 1, tzinfo=UTC))
            view = await alice.create_schedule(
                "often", spec(), cron="*/10 * * * *", overlap="allow", catch_up_seconds=86_400
            )
        moment = view.next_times[0]
        expected: list[datetime] = []
        for last in acts:
            process = await start(last, moment + timedelta(seconds=1))
            expected.append(moment)
            moment += timedelta(minutes=10)
            await process.wait()
        await start(0, moment)  # no further kill, and one more due time
        expected.append(moment)
        names = [f"often-{at:%Y%m%dt%H%Mz}" for at in expected]
        views = [await person.ended(name) for name in names]
        assert [view.state for view in views] == ["completed"] * len(names), (tmp_path / "log").read_text()[-3000:]
        for name in names:
            await person.receives(name, "task.completed")
        runs = (await decided(person, alice, "often", expected[-1])).runs
        assert {run.outcome for run in runs} == {"started"}
        await person.all_gone()
    person.check_sequences()
    submitted = [event["subject"] for event in person.unique() if event["type"] == "task.submitted"]
    assert sorted(submitted) == names
    assert len([event for event in person.unique() if event["type"] == "agent.started"]) == len(names)


async def test_two_spawners_start_a_due_time_once(
    scheduling: Callable[[], Service], person: Any, herd: Broker, clock: Clock
) -> None:
    """Only the holder of the lease starts tasks, but either spawner replies to requests."""
    async with scheduling().running(), scheduling().running(), Herd.connect(context_of(herd)) as alice:
        await alice.create_schedule("often", spec(), cron="*/10 * * * *", overlap="allow")
        names = []
        for _ in range(3):
            view = await decided(person, alice, "often", await due(alice, "often", clock))
            names.append(view.runs[0].task)
            assert (await person.ended(names[-1])).state == "completed"
        names.append((await alice.trigger_schedule("often")).task)
        assert (await person.ended(names[-1])).state == "completed"
        await person.all_gone()
    submitted = [event["subject"] for event in person.unique() if event["type"] == "task.submitted"]
    assert submitted == names


async def test_schedules_of_a_project_are_its_own(scheduling: Callable[[], Service], person: Any, herd: Broker) -> None:
    """Another project's client sees and changes no schedule; subscribers, workers and other services can't request."""
    async with scheduling().running(), Herd.connect(context_of(herd)) as alice:
        await alice.create_schedule("mine", spec(), cron="0 3 1 1 *")
        wanted = SetSchedule(name="mine", schedule=ScheduleSpec(cron="* * * * *", task=spec()), replace=True)
        requests = ("set_schedule", "schedules", "pause_schedule", "trigger_schedule", "delete_schedule")
        for principal, project in (
            (Principal.CLIENT, "p2"),
            (Principal.SUBSCRIBER, "p1"),
            (Principal.WORKER, "p1"),
            (Principal.MONITOR, "p1"),
            (Principal.EVENT_INGEST, "p1"),
            (Principal.MESSAGE_RELAY, "p1"),
        ):
            async with herd.bus(principal, project=project, sandbox="sbx-1") as other:
                for verb in requests:
                    await unheard(other, request_subject(f"spawner.{verb}", "p1"), wanted.model_dump_json().encode())
                for subject in ("$JS.API.DIRECT.GET.KV_schedules.$KV.schedules.p1.mine", "$KV.schedules.p1.mine"):
                    await unheard(other, subject, b"{}")
        async with herd.bus(Principal.CLIENT, project="p2") as bus:
            assert (await bus.ask(ListSchedules(), "p2")).schedules == []
            with pytest.raises(BusError, match="there is no schedule mine in p2"):
                await bus.ask(ListSchedules(name="mine"), "p2")
        assert (await alice.schedule("mine")).cron == "0 3 1 1 *"


async def unheard(bus: Bus, subject: str, data: bytes) -> None:
    """Check that the broker does not deliver this message."""
    before = bus.violations
    await bus.client.publish(subject, data)
    for _ in range(2):  # nats-py writes a flush's PING before the messages that it still has to send
        await bus.client.flush(timeout=PATIENCE)
    assert bus.violations == before + 1, subject


async def test_invalid_schedules_are_refused(
    scheduling: Callable[[], Service], person: Any, herd: Broker, sandherd: Sandherd, tmp_path: Path
) -> None:
    """An invalid schedule is refused by the command before sending, or by the spawner, with field and remedy."""
    two = tmp_path / "two.yaml"
    two.write_text("tasks: [{text: a, argv: ['true']}, {text: b, argv: ['true']}]")
    run = ["--", "x", "--", "true"]
    async with scheduling().running(), Herd.connect(context_of(herd)) as alice:
        for words, expected_text in (
            (["--cron", "61 * * * *", *run], "change --cron"),
            (["--cron", "0 3 * *", *run], "cron"),
            (["--cron", "0 3 * * *", "--time-zone", "Mars/Base", *run], "there is no time zone Mars/Base"),
            (["--cron", "0 3 * * *", "--catch-up", "30d", *run], "--catch-up has to be 1m to 7d"),
            (["--cron", "0 3 * * *", str(two)], "it has 2 tasks"),
            (["--cron", "0 3 * * *", str(tmp_path / "none.yaml")], "No such file"),
            (["--cron", "0 3 * * *", "--", "x", "--dir", str(tmp_path), "--", "true"], "can't have --dir"),
            (["--cron", "0 3 * * *", "--", "x", "--name", "task-1", "--", "true"], "can't have --name"),
            (["--cron", "0 3 * * *", "--", "x", "--depends-on", "task-1", "--", "true"], "depends_on"),
            (["--cron", "0 3 * * *", "--", "x", "--secret-env", f"A={CANARY}", "--", "true"], "sandherd secrets set"),
            (["--cron", "0 3 * * *", "--", "x", "--secret", "A=none", "--", "true"], "there is no secret none"),
            (["--cron", "0 3 * * *", "--", "x", "--nonsense"], "--nonsense"),
        ):
            status, _, err = await sandherd("create", "mine", *words)
            assert status in {1, 2}, words
            assert expected_text in err, words
            assert CANARY not in err
        assert (await sandherd("trigger", "mine"))[0] == 1
        with pytest.raises(HerdError, match="there is no schedule mine"):
            await alice.delete_schedule("mine")
        assert (await alice.schedules()).schedules == []


async def test_start_that_was_interrupted_long_ago_is_not_repeated(
    scheduling: Callable[[], Service], person: Any, herd: Broker
) -> None:
    """An interrupted start of long ago, whose task may have run, is missed; one of a moment ago is repeated."""
    async with Herd.connect(context_of(herd)) as alice:
        async with scheduling().running():
            await alice.create_schedule("yearly", spec(), cron="0 3 1 1 *")
        now = utc_now()
        async with herd.bus(Principal.SPAWNER) as bus:
            kv = await bus.js.key_value("schedules")
            entry = await kv.get("p1.yearly")
            moments = {"yearly-old": now - timedelta(days=2), "yearly-new": now - timedelta(minutes=1)}
            starts = [{"task": task, "due_at": str(at), "at": str(at)} for task, at in moments.items()]
            document = json.loads(entry.value or b"") | {"starts": starts}
            await kv.update("p1.yearly", json.dumps(document).encode(), last=entry.revision)
        async with scheduling().running():
            runs = (await decided(person, alice, "yearly", moments["yearly-new"])).runs
            assert [(run.task, run.outcome) for run in runs] == [("yearly-new", "started"), ("yearly-old", "missed")]
            assert (await person.ended("yearly-new")).state == "completed"
            await person.all_gone()
    assert [event["subject"] for event in person.unique() if event["type"] == "task.submitted"] == ["yearly-new"]
