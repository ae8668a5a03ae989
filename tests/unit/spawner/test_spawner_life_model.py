"""Random histories of one task and its sandbox, by the same decision functions that the spawner uses."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandherd.contracts.commands import CancelTask, CommandHarness, SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentStarted
from sandherd.contracts.states import ALLOWED, SANDBOX_ENDED, TASK_ENDED
from spawner.records.base_record import Record
from spawner.runtimes.contract import ObservedSandbox, RunEnd
from spawner.sandboxes import command_decisions, lifecycle
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.lifecycle_facts import LifecycleFacts, LifecycleTimeouts
from spawner.sandboxes.lifecycle_steps import (
    BeginStop,
    Clear,
    EndTask,
    Fail,
    Finish,
    Pause,
    Recover,
    Rest,
    Resume,
    Spawn,
    Step,
    Stop,
)
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.spec_resolution import Refusal
from spawner.tasks import task_transitions as of_task
from spawner.tasks.agent_events import lateness
from spawner.tasks.resolved_task import ResolvedTask
from spawner.tasks.scheduling_order import sandbox_name
from spawner.tasks.task_record import TaskRecord

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)
RULES = LifecycleTimeouts(spawn_timeout=60, recovery_timeout=60, max_recoveries=3)
STARTED = AgentStarted(timestamp=BEGIN, sdk="command", task="task-1", task_description_length=1)


def submission(linger: int) -> Envelope[SubmitTask]:
    spec = TaskSpec(text="do it", harness=CommandHarness(argv=["true"]), linger_seconds=linger)
    return wrap(
        SubmitTask(task="task-1", spec=spec), SubmitTask.type, source="/sandherd/client/x", sequence=1, project="p1",
        subject="task-1", time=BEGIN,
    )  # fmt: skip


class Life(RuleBasedStateMachine):
    """The events that may happen, in any order; the spawner may be killed between any two of its steps."""

    @initialize(
        linger=st.sampled_from([0, 30]),
        attempts=st.sampled_from([1, 3]),
        ttl=st.sampled_from([200, 40_000]),
        under_way=st.booleans(),
    )
    def begin(self, linger: int, attempts: int, ttl: int, under_way: bool) -> None:
        self.now = BEGIN
        self.ttl = ttl
        terms = ResolvedTask(max_attempts=attempts)
        self.task = of_task.submitted(submission(linger), BEGIN, f"00-{'a' * 32}-{'b' * 16}-01", terms)
        self.frozen = False
        self.sandbox: SandboxRecord | None = None
        self.seen: ObservedSandbox | None = None
        self.quarantined: ObservedSandbox | None = None
        self.published: dict[str, list[dict[str, object]]] = {}
        self.moves: list[tuple[Any, Any]] = []
        self.settled = True
        if under_way:
            # What is possible only while its agent runs is seldom come to otherwise.
            self.assign()
            self.lead()
            self.agent_publishes(STARTED)

    # --- the spawner ---------------------------------------------------------------------------------------------

    @rule()
    def assign(self) -> None:
        """The scheduler's two writes; it may have been killed between them before."""
        if self.task.state != "pending" or not self.make_sandbox() or self.sandbox is None:
            return
        self.move_task(of_task.assigned(self.task, self.sandbox.sandbox, self.now))

    @rule()
    def request_only(self) -> None:
        """The first of the scheduler's writes, and then it is killed."""
        if self.task.state == "pending":
            self.make_sandbox()

    def make_sandbox(self) -> bool:
        """Create the record of the current attempt's sandbox once the one before has ended. Whether it exists."""
        if self.sandbox is not None and self.sandbox.attempt == self.task.attempt:
            return True
        if self.sandbox is not None and (not self.sandbox.ended or self.seen is not None):
            return False
        if self.sandbox is not None:
            self.published.setdefault(self.sandbox.source, []).extend(
                json.loads(published) for published in self.sandbox.outbox
            )
            self.check(self.sandbox)
        expires_at = self.now + timedelta(seconds=self.ttl)
        self.sandbox = of_sandbox.requested(self.task, sandbox_name(self.task), self.now, expires_at=expires_at)
        self.quarantined, self.frozen = None, False
        return True

    @rule()
    def lead(self) -> None:
        self.do(self.next_step())

    @rule()
    def lead_and_die(self) -> None:
        """The spawner executes a step, and is killed before it stores the result."""
        if self.sandbox:
            self.do_there(self.next_step(), self.sandbox)

    @rule(data=st.data())
    def publish(self, data: st.DataObject) -> None:
        """The outbox is published, and cleared or not: a crash in between publishes it again."""
        record: Record = data.draw(st.sampled_from([record for record in (self.task, self.sandbox) if record]))
        for document in record.outbox:
            event = json.loads(document)
            self.published.setdefault(event["source"], []).append(event)
        if data.draw(st.booleans()):
            cleared = record.without(frozenset(record.outbox))
            if isinstance(cleared, TaskRecord):
                self.task = cleared
            elif isinstance(cleared, SandboxRecord):
                self.sandbox = cleared

    # --- the world -----------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.001, 1, 70]))
    def time_passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(settled=st.booleans())
    def events_arrive(self, settled: bool) -> None:
        self.settled = settled

    @rule()
    def cancel(self) -> None:
        self.move_task(of_task.cancelled(self.task, CancelTask(task="task-1", reason="no"), self.now))

    @precondition(lambda self: self.sandbox is not None)
    @rule(reason=st.sampled_from(["idle", "because I say so"]))
    def terminate(self, reason: str) -> None:
        assert self.sandbox
        self.move_sandbox(of_sandbox.stopping(self.sandbox, reason, self.now))

    @precondition(lambda self: self.sandbox is not None)
    @rule(wanted=st.booleans())
    def pause_or_resume(self, wanted: bool) -> None:
        """A user requests a pause or a resume; if it is refused, nothing changes."""
        assert self.sandbox
        request_data = (
            command_decisions.paused_by(self.sandbox, "", can_pause=True)
            if wanted
            else command_decisions.resumed_by(self.sandbox)
        )
        if not isinstance(request_data, Refusal):
            self.move_sandbox(request_data)

    @precondition(lambda self: self.sandbox is not None)
    @rule(seconds=st.sampled_from([1, 500]))
    def extend(self, seconds: int) -> None:
        assert self.sandbox
        request_data = command_decisions.extended_by(self.sandbox, seconds, self.now, max_ttl=50_000)
        if not isinstance(request_data, Refusal):
            self.move_sandbox(request_data)

    @precondition(lambda self: self.seen is not None and not self.frozen)
    @rule(
        data=st.sampled_from(
            [
                STARTED,
                AgentCompleted(exit_code=0),
                AgentFailed(error="exit status 1", error_type="exit_status", exit_code=1),
            ]
        )
    )
    def agent_publishes(self, data: EventData) -> None:
        """The agent's events are delivered in any order, repeatedly and late."""
        assert self.sandbox
        event = wrap(
            data, data.type, source=f"/sandherd/sandbox/{self.sandbox.sandbox}", sequence=1, project="p1",
            subject=self.sandbox.sandbox, time=self.now, sandboxid=self.sandbox.sandbox,
        )  # fmt: skip
        if isinstance(data, AgentStarted):
            self.move_sandbox(of_sandbox.running(self.sandbox, self.now))
        if lateness(event, self.sandbox, self.task):
            return
        if isinstance(data, AgentCompleted | AgentFailed):
            self.move_task(of_task.ended(self.task, self.sandbox.sandbox, data, self.now))
        else:
            self.move_task(of_task.running(self.task, self.sandbox.sandbox, self.now))

    @precondition(lambda self: self.seen is not None and self.seen.alive)
    @rule(code=st.sampled_from([0, 1, 2, 137, None]), memory=st.booleans())
    def worker_ends(self, code: int | None, memory: bool) -> None:
        assert self.seen
        self.seen = ObservedSandbox(
            self.seen.unit, alive=False, runs=self.seen.runs, end=RunEnd(code, out_of_memory=memory)
        )

    @precondition(lambda self: self.seen is not None and self.seen.alive and self.sandbox is not None)
    @rule(frozen=st.booleans())
    def requested_before(self, frozen: bool) -> None:
        """An earlier request to its runtime takes effect only now."""
        if self.sandbox and self.sandbox.state in {"running", "paused"}:
            self.frozen = frozen

    @precondition(lambda self: self.seen is not None)
    @rule()
    def host_loses_it(self) -> None:
        self.seen = None

    @precondition(lambda self: self.quarantined is not None)
    @rule()
    def put_back(self) -> None:
        """The recovery of a quarantined sandbox is tried again."""
        assert self.sandbox
        self.sandbox = of_sandbox.one_more_recovery(self.sandbox)
        self.seen, self.quarantined = self.quarantined, None

    # --- how steps change the world ------------------------------------------------------------------------------

    def next_step(self) -> Step:
        if self.sandbox is None:
            return Rest()
        seen = self.seen and replace(self.seen, frozen=self.frozen)
        facts = LifecycleFacts(self.sandbox, self.task, seen, self.now, settled=self.settled, leading_since=BEGIN)
        return lifecycle.next_step(facts, RULES)

    def do(self, step: Step) -> None:
        if self.sandbox is None:
            return
        self.do_there(step, self.sandbox)
        self.write_down(step, self.sandbox)

    def do_there(self, step: Step, sandbox: SandboxRecord) -> None:
        runs = self.seen.runs if self.seen else 0
        match step:
            case Spawn():
                self.seen = self.seen or ObservedSandbox(sandbox.runtime_unit, alive=True, runs=1)
            case Recover():
                self.seen, self.frozen = ObservedSandbox(sandbox.runtime_unit, alive=True, runs=runs + 1), False
            case Pause() if self.seen and self.seen.alive:
                self.frozen = True
            case Resume():
                self.frozen = False
            case Stop() if self.seen and self.seen.alive:
                self.seen = ObservedSandbox(sandbox.runtime_unit, alive=False, runs=runs, end=RunEnd(137))
            case Clear(keep=keep):
                self.seen, self.quarantined = None, self.seen if keep else None
            case _:
                pass

    def write_down(self, step: Step, sandbox: SandboxRecord) -> None:  # noqa: C901  # a case for each step
        match step:
            case Spawn():
                self.move_sandbox(of_sandbox.spawned(sandbox, "bubblewrap", self.now))
            case Recover():
                self.sandbox = of_sandbox.recovering(sandbox, self.now)
            case Pause():
                self.move_sandbox(of_sandbox.paused(sandbox, self.now))
            case Resume():
                self.move_sandbox(of_sandbox.resumed(sandbox, self.now))
            case BeginStop(reason=reason):
                self.move_sandbox(of_sandbox.stopping(sandbox, reason, self.now))
            case Stop():
                self.sandbox = of_sandbox.stopped(sandbox, 137)
            case EndTask(error=error, error_type=kind):
                self.move_task(of_task.attempt_failed(self.task, error, kind, self.now))
            case Fail(error=error, error_type=kind):
                self.move_sandbox(of_sandbox.failed(sandbox, error, kind, self.now))
            case Finish(unsaid=unsaid):
                self.move_sandbox(of_sandbox.terminated(sandbox, unsaid=unsaid, now=self.now))
            case Clear() | Rest():
                pass

    def move_task(self, record: TaskRecord) -> None:
        if record.state is not self.task.state:
            self.moves.append((self.task.state, record.state))
        self.task = record

    def move_sandbox(self, record: SandboxRecord) -> None:
        assert self.sandbox
        if record.state is not self.sandbox.state:
            self.moves.append((self.sandbox.state, record.state))
        self.sandbox = record

    # --- what must hold ------------------------------------------------------------------------------------------

    @invariant()
    def only_allowed_moves(self) -> None:
        """`spawned` and `running` may pass through one state in between."""
        for before, after in getattr(self, "moves", []):
            table = ALLOWED[type(before)]
            middles = {middle for first, middle in table if first == before}
            assert (before, after) in table or any((middle, after) in table for middle in middles), (before, after)

    @invariant()
    def nothing_runs_for_an_ended_sandbox(self) -> None:
        """No process runs, except to publish events that were not delivered."""
        if getattr(self, "sandbox", None) and self.sandbox and self.sandbox.state in SANDBOX_ENDED:
            assert not (self.seen and self.seen.alive) or self.sandbox.unsaid

    @invariant()
    def what_goes_on_is_not_frozen(self) -> None:
        """Once the spawner has no next step, a running sandbox is not frozen, and a paused one is frozen.

        This holds whenever the spawner was killed before, and whatever takes effect late.
        """
        sandbox = getattr(self, "sandbox", None)
        if sandbox and self.seen and self.seen.alive and self.frozen is not (sandbox.state == "paused"):
            assert sandbox.state not in {"running", "paused"} or not isinstance(self.next_step(), Rest)

    @invariant()
    def nothing_unpublished_is_removed(self) -> None:
        if getattr(self, "sandbox", None) and self.sandbox and not self.sandbox.unsaid:
            assert self.quarantined is None

    def teardown(self) -> None:
        """With a spawner that stays alive, everything ends, and all published events are complete."""
        if not hasattr(self, "task"):
            return
        self.settled = True
        for _ in range(400):
            self.assign()
            step = self.next_step()
            self.do(step)
            if isinstance(step, Rest) and self.seen and self.seen.alive:
                # An agent that says no end: whatever its worker's status, the task must not wait for ever.
                self.worker_ends(code=0, memory=False)
            elif isinstance(step, Rest):
                self.now += timedelta(seconds=70)
            if self.task.state in TASK_ENDED and isinstance(step, Rest) and self.seen is None:
                break
        assert self.task.state in TASK_ENDED
        assert self.sandbox is None or self.sandbox.state in SANDBOX_ENDED
        assert self.seen is None
        for record in (self.task, self.sandbox):
            if record:
                self.published.setdefault(record.source, []).extend(json.loads(document) for document in record.outbox)
                self.check(record)

    def check(self, record: Record) -> None:
        published = {event["sequence"]: event for event in self.published[record.source]}
        assert sorted(published) == list(range(1, record.sequence + 1))  # type: ignore[type-var]  # all are numbers
        ids = {event["sequence"]: event["id"] for event in self.published[record.source]}
        assert all(ids[event["sequence"]] == event["id"] for event in self.published[record.source])
        ends = [
            event for event in published.values() if str(event["type"]).endswith(("completed", "failed", "cancelled"))
        ]
        assert len(ends) <= 1


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
