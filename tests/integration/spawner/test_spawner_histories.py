"""Random histories of a herd on the real broker: the invariants hold under any failure.

The spawner's real parts work on a real nats-server; users, workers, providers, leases and the clock are scripted
(`scripted/`). A spawner may be killed before or after any await on the broker, a runtime or a lease, be stopped there
for as long as the history likes, or wait there for a slow answer; a second one works beside it, and leases pass
between them at any time. Providers lose answers, do things twice or much later, lose sandboxes, and have ones that
was not requested. Commands and events come in any order, and again.

At every write the broker takes: the transition is in the table; the sandbox of the attempt before has ended before the
next begins; no limit is exceeded; no old leader writes. At every agent's start: no other of its task is at work. When
a history is left alone at its end: every task has ended as its last attempt did, every sandbox has, none outlives its
task or its time, nothing is left at a provider, no credential is left good, and every source's events are gap-free.

`make test` runs HISTORIES_QUICK of them, about 6 s of CPU; the environment variable SANDHERD_HISTORIES takes
another number, and `make histories` runs thousands. A history that breaks a rule is made as short as it can be, which
takes a few minutes; with SANDHERD_NO_SHRINK it is shown as it was found.
"""

import os
import shutil
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from sandherd.contracts.commands import (
    CancelTask,
    CommandHarness,
    CreateSandbox,
    ExtendSandbox,
    PauseSandbox,
    ResumeSandbox,
    RetryPolicy,
    RetryTask,
    SandboxSpec,
    SubmitTask,
    TaskSpec,
    TerminateSandbox,
)
from sandherd.telemetry import logs
from spawner.sandboxes.sandbox_record import SandboxRecord
from tests.integration.spawner.scripted.gate import Fate, Kind
from tests.integration.spawner.scripted.history_end import go_on, settle
from tests.integration.spawner.scripted.runtime import Doing, Fault
from tests.integration.spawner.scripted.theatre import Theatre
from tests.integration.spawner.scripted.workers import OUTCOMES
from tests.integration.spawner.scripted.world import RUNTIMES, World

HISTORIES_QUICK: Final = 16
STEPS: Final = 40
FIXED: Final = "SANDHERD_HISTORIES" not in os.environ
"""`make test` runs the same histories each time, `make histories` new ones."""
PHASES: Final = [Phase.generate] if "SANDHERD_NO_SHRINK" in os.environ else [Phase.generate, Phase.shrink]
FITTING: Final = {"pause": "running", "resume": "paused", "extend": "running"}
VERBS: Final = ("create", "create", "recover", "stop", "remove", "pause", "resume", "prepare")

few = st.one_of(st.none(), st.builds(Fate, st.sampled_from(Kind), st.integers(1, 14)))
"""The fates of a spawner while it does one thing."""
many = st.one_of(st.none(), st.builds(Fate, st.sampled_from(Kind), st.integers(1, 70)))
"""The fates of a spawner while it does a whole round."""
LAST: Final = 11
UNKNOWN: Final = "task-unknown"
"""An unknown task; a task that depends on it is rejected."""
which = st.integers(0, LAST)
projects = st.sampled_from(["p1", "p2"])


tasks = st.tuples(
    projects,
    st.fixed_dictionaries(
        {
            "runtime": st.sampled_from(RUNTIMES),
            "priority": st.sampled_from(["critical", "normal", "low"]),
            "profile": st.sampled_from([None, "quick"]),
            "linger_seconds": st.sampled_from([0, 0, 30]),
            "attempts": st.integers(1, 3),
            "after": st.lists(which, max_size=2),
            "attempt_seconds": st.sampled_from([None, None, 50]),
            "task_seconds": st.sampled_from([None, None, 500]),
            "ttl_seconds": st.sampled_from([None, None, 100]),
        }
    ),
)


@pytest.fixture(scope="module")
def theatre() -> Iterator[Theatre]:
    directory = Path(tempfile.mkdtemp(prefix="histories-"))
    try:
        theatre = Theatre(directory)
        yield theatre
        theatre.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class Histories(RuleBasedStateMachine):
    """Everything that may happen, in any order. A number chooses the object among those that exist."""

    def __init__(self, theatre: Theatre) -> None:
        super().__init__()
        self.theatre = theatre
        self.world: World = theatre.run(theatre.empty())
        self.tasks: list[tuple[str, str]] = []
        self.sandboxes: list[tuple[str, str]] = []

    @initialize(specs=st.lists(tasks, min_size=1, max_size=3), rounds=st.integers(0, 3))
    def begin(self, specs: list[tuple[str, dict[str, Any]]], rounds: int) -> None:
        """Begin with something already in progress."""
        for project, spec in specs:
            self.submit((project, spec))
        for _ in range(rounds):
            self.all_that_is_to_be_done(0, None)

    # --- users ---------------------------------------------------------------------------------------------------

    @rule(spec=tasks)
    def submit(self, spec: tuple[str, dict[str, Any]]) -> None:
        project, given = spec
        mine = [task for of, task in self.tasks if of == project]
        name = f"task-{len(self.tasks) + 1}"
        after = {mine[number] for number in given["after"] if number < len(mine)}
        after |= {UNKNOWN for number in given["after"] if number == LAST}
        given = {key: value for key, value in given.items() if key not in {"after", "attempts"}}
        what = TaskSpec(
            text="do it", harness=CommandHarness(argv=["true"]), depends_on=tuple(sorted(after)),
            retry=RetryPolicy(max_attempts=spec[1]["attempts"], first_delay_seconds=4), **given,
        )  # fmt: skip
        self.tasks.append((project, name))
        self.world.command(SubmitTask(task=name, spec=what), project, name)

    @precondition(lambda self: self.tasks)
    @rule(number=which, again=st.booleans())
    def call_off_or_try_again(self, number: int, again: bool) -> None:
        project, task = self.tasks[number % len(self.tasks)]
        self.world.command(RetryTask(task=task) if again else CancelTask(task=task), project, task)

    @rule(project=projects, runtime=st.sampled_from(RUNTIMES), ttl=st.sampled_from([None, 100]))
    def create_sandbox(self, project: str, runtime: str, ttl: int | None) -> None:
        name = f"sbx-{len(self.sandboxes) + 1:026}"
        self.sandboxes.append((project, name))
        spec = SandboxSpec(runtime=runtime, ttl_seconds=ttl)
        self.world.command(CreateSandbox(sandbox=name, spec=spec), project, name)

    @rule(number=which, what=st.sampled_from(["terminate", "pause", "resume", "extend"]), spawner=which, fate=few)
    def command_sandbox(self, number: int, what: str, spawner: int, fate: Fate | None) -> None:
        """Choose a sandbox for which the command makes sense, if there is one; the command is delivered at once."""
        records = list(self.world.journal.live()) or list(self.world.journal.sandboxes.values())
        one = self.world.spawner(spawner)
        if not records or not one:
            return
        fitting = [record for record in records if record.state == FITTING.get(what)]
        record = (fitting or records)[number % len(fitting or records)]
        name = record.sandbox
        command = {
            "terminate": TerminateSandbox(sandbox=name, reason="dead"),
            "pause": PauseSandbox(sandbox=name),
            "resume": ResumeSandbox(sandbox=name),
            "extend": ExtendSandbox(sandbox=name, seconds=300),
        }[what]
        self.world.command(command, record.project, name)
        self.run(self.world.deliver(self.world.waiting[-1], one, fate))

    def running(self) -> list[SandboxRecord]:
        return [record for record in self.world.journal.live() if record.state in {"running", "paused"}]

    @precondition(lambda self: self.running())
    @rule(number=which, spawner=which, fate=few, other=few)
    def freeze_for_a_while(self, number: int, spawner: int, fate: Fate | None, other: Fate | None) -> None:
        record = self.running()[number % len(self.running())]
        for command, meeting in ((PauseSandbox, fate), (ResumeSandbox, other)):
            one = self.world.spawner(spawner)
            if one:
                self.world.command(command(sandbox=record.sandbox), record.project, record.sandbox)
                self.run(self.world.deliver(self.world.waiting[-1], one, meeting))

    @precondition(lambda self: self.world.given)
    @rule(number=which)
    def command_comes_again(self, number: int) -> None:
        self.world.ask_again(number)

    # --- spawners ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.world.waiting)
    @rule(number=which, spawner=which, fate=few)
    def deliver(self, number: int, spawner: int, fate: Fate | None) -> None:
        one = self.world.spawner(spawner)
        if one:
            self.run(self.world.deliver(self.world.waiting[number % len(self.world.waiting)], one, fate))

    @precondition(lambda self: self.world.received)
    @rule(number=which, spawner=which, again=st.booleans(), fate=few)
    def receive(self, number: int, spawner: int, again: bool, fate: Fate | None) -> None:
        events = self.world.received if again or not self.world.waiting_events else self.world.waiting_events
        one = self.world.spawner(spawner)
        if one:
            self.run(self.world.receive(events[number % len(events)], one, fate))

    @rule(spawner=which, fate=few)
    def tick(self, spawner: int, fate: Fate | None) -> None:
        one = self.world.spawner(spawner)
        if one:
            self.run(self.world.tick(one, fate))

    @rule(spawner=which, fate=few)
    def sweep(self, spawner: int, fate: Fate | None) -> None:
        one = self.world.spawner(spawner)
        if one:
            self.run(self.world.sweep(one, fate))

    @rule(spawner=which, fate=many, agents_end=st.booleans())
    def all_that_is_to_be_done(self, spawner: int, fate: Fate | None, agents_end: bool = False) -> None:
        one = self.world.spawner(spawner)
        if one:
            self.run(go_on(self.world, one, agents_end=agents_end, fate=fate))

    @rule(spawner=which, fate=few)
    def prune(self, spawner: int, fate: Fate | None) -> None:
        one = self.world.spawner(spawner)
        if one:
            self.run(self.world.prune(one, fate))

    @precondition(lambda self: len(self.world.instances) < 2)
    @rule()
    def another_spawner(self) -> None:
        self.theatre.run(self._start())

    async def _start(self) -> None:
        self.world.start()

    @precondition(lambda self: self.world.instances)
    @rule(number=which, what=st.sampled_from(["thaw", "thaw", "kill", "lag"]))
    def befall_spawner(self, number: int, what: str) -> None:
        one = self.world.instances[number % len(self.world.instances)]
        match what:
            case "thaw":
                one.gate.thaw()
            case "kill":
                one.gate.die()
            case _:
                one.lags = not one.lags
        self.run(self.world.still())

    # --- workers and providers -----------------------------------------------------------------------------------

    @rule(number=which, spawner=which, fate=few)
    def join(self, number: int, spawner: int, fate: Fate | None) -> None:
        joining = [box for _, box in self.world.boxes() if box.doing in {Doing.JOINING, Doing.RECOVERING}]
        one = self.world.spawner(spawner)
        if joining and one:
            self.run(self.world.join(joining[number % len(joining)], one, fate))

    @rule(number=which, outcome=st.sampled_from(OUTCOMES), published=st.booleans())
    def agent_ends(self, number: int, outcome: Any, published: bool) -> None:
        at_work = [box for _, box in self.world.boxes() if box.runs_agent]
        if at_work:
            self.world.workers.agent_ends(at_work[number % len(at_work)], outcome, published=published)

    @rule(number=which, code=st.sampled_from([137, 137, 0, 1, 2, None]))
    def worker_dies(self, number: int, code: int | None) -> None:
        living = [box for _, box in self.world.boxes() if box.alive]
        if living:
            box = living[number % len(living)]
            if code == 0:
                self.world.workers.publish_next(box)
            box.finish(code)

    @rule(number=which)
    def host_loses_a_box(self, number: int) -> None:
        boxes = self.world.boxes()
        if boxes:
            provider, box = boxes[number % len(boxes)]
            del provider.boxes[box.unit]
            box.finish(None)

    @rule(runtime=st.sampled_from(RUNTIMES), project=st.sampled_from([None, "p1", "p2"]))
    def orphan_appears(self, runtime: str, project: str | None) -> None:
        self.world.orphan(self.world.providers[runtime], f"sbx-{900 + self.world.next_sequence():026}", project)

    @rule(runtime=st.sampled_from(RUNTIMES), verb=st.sampled_from(VERBS), fault=st.sampled_from(Fault))
    def provider_fails(self, runtime: str, verb: str, fault: Fault) -> None:
        self.world.providers[runtime].faults[verb] = fault

    @rule(runtime=st.sampled_from(RUNTIMES))
    def late_effect(self, runtime: str) -> None:
        self.world.providers[runtime].catch_up()

    @rule(seconds=st.sampled_from([1, 5, 30, 70, 70, 1000, 10_000]))
    def time_passes(self, seconds: float) -> None:
        self.world.pass_time(seconds)

    # --- what must hold ------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.theatre.tally["steps"] += 1
        self.theatre.run(work)
        self.world.journal.check()

    def teardown(self) -> None:
        """Left alone, everything ends as it should."""
        try:
            self.world.journal.check()
            self.theatre.run(settle(self.world))
        finally:
            self.theatre.run(self.world.close())
            self.theatre.count(self.world)


def how_many() -> int:
    """The number of histories to run."""
    return int(os.environ.get("SANDHERD_HISTORIES", HISTORIES_QUICK))


@pytest.mark.timeout(3600)
def test_invariants_hold_in_random_histories(theatre: Theatre) -> None:
    """The invariants in the module's docstring hold in random histories of its events."""
    logs.configure("test", "critical")
    run_state_machine_as_test(
        cast("type[Histories]", lambda: Histories(theatre)),  # any factory works, but hypothesis requires a class
        settings=settings(
            max_examples=how_many(), stateful_step_count=STEPS, deadline=None, database=None, derandomize=FIXED,
            suppress_health_check=list(HealthCheck), phases=PHASES,
        ),
    )  # fmt: skip
    theatre.check_that_all_happened()
