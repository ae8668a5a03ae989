"""Handles agents' events that change their task: started, completed, failed, and saved artifacts."""

from collections.abc import Awaitable, Callable
from typing import Final

from sandherd.bus.consumers.consumer import DONE, Delivery, Outcome, Retry
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.attempt_inputs import StoredSession
from sandherd.contracts.decoder import read_event
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.access import AgentBranchSaved, AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentShutdown, AgentStarted
from sandherd.contracts.failures import ErrorType
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry import logs, spans
from sandherd.telemetry.traces import span
from spawner.live_state import LiveState
from spawner.records.base_record import StoreUnavailableError
from spawner.repositories import branch_transitions as of_branch
from spawner.repositories.branch_record import ReceivedCommits
from spawner.sandboxes import sandbox_transitions as of_sandbox
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks import task_transitions as of_task
from spawner.tasks.task_record import TaskRecord

TaskChange = Callable[[TaskRecord], TaskRecord]
"""A state change of a task: a pure function from its record to the next one."""
Disruption = Callable[[SandboxRecord], Awaitable[str]]
"""Returns the reason if the runtime ends a sandbox without our request; empty if it does not, or gives no reason."""
_log: Final = logs.get("agents")


class AgentEventHandler:
    """Handles the consumer `spawner-agents`.

    The task of a sandbox is read from the sandbox's record, never from the event, because a worker might forge it.
    """

    def __init__(self, live: LiveState, disruption: Disruption) -> None:
        self._live = live
        self._disruption = disruption
        self._locks: KeyedLocks[str] = KeyedLocks()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle one event, or count it as late."""
        event = read_event(delivery.subject, delivery.data)
        async with self._locks.hold(f"{event.project}.{event.subject}"):
            with span(spans.HANDLE, event.traceparent, _span_values(event)):
                try:
                    return await self._handle(event)
                except StoreUnavailableError as error:
                    return Retry(1.0, str(error))

    async def _handle(self, event: Envelope[EventData]) -> Outcome:
        held = await self._live.sandboxes.newest(f"{event.project}.{event.subject}")
        if held is None:
            self._count_late(event, "unknown_sandbox")
            return DONE
        match event.data:
            case AgentStarted():
                await self._record_start(event, held.record)
            case AgentCompleted() | AgentFailed() as outcome:
                await self._record_end(event, held.record, outcome)
            case AgentWorkSaved() | AgentTranscriptSaved() as saved:
                await self._record_saved(event, held.record, saved)
            case AgentBranchSaved() as commits:
                await self._save_branch(event, held.record, commits)
            case AgentShutdown() as last:
                _log.info("agent shut down", sandbox=event.subject, reason=last.reason)
            case _:
                pass
        return DONE

    async def _record_start(self, event: Envelope[EventData], sandbox: SandboxRecord) -> None:
        now = self._live.now()
        first = sandbox.running_at is None
        held = await self._live.change_sandbox(
            sandbox.key, lambda record: of_sandbox.running(record, now), publish=False
        )
        await self._move_task(event, sandbox, lambda task: of_task.running(task, sandbox.sandbox, now))
        if held:
            await self._live.flush_sandbox(held)
        if first:
            spawn_seconds = (now - sandbox.requested_at).total_seconds()
            self._live.meters.observe("sandherd_spawn_seconds", max(0.0, spawn_seconds), runtime=sandbox.runtime)

    async def _record_end(
        self, event: Envelope[EventData], sandbox: SandboxRecord, outcome: AgentCompleted | AgentFailed
    ) -> None:
        if isinstance(outcome, AgentFailed) and ErrorType(outcome.error_type) is ErrorType.STOPPED:
            outcome = _with_reason(outcome, await self._disruption(sandbox))
        now = self._live.now()
        await self._move_task(event, sandbox, lambda task: of_task.ended(task, sandbox.sandbox, outcome, now))

    async def _record_saved(
        self, event: Envelope[EventData], sandbox: SandboxRecord, saved: AgentWorkSaved | AgentTranscriptSaved
    ) -> None:
        """Record an artifact that was saved for the next attempt.

        The event may arrive after the attempt that saved the artifact has ended.
        """
        if saved.artifact is None:
            return
        if not belongs_to(saved.artifact, sandbox):
            self._count_late(event, "not_its_own")
            return
        fields = _saved_fields(saved, saved.artifact)
        held = await self._live.change_task_of(
            sandbox, lambda task: of_task.with_saved_work(task, sandbox.sandbox, fields)
        )
        if held and not of_task.accepts_saved_work(held.record, sandbox.sandbox):
            self._count_late(event, "old_attempt")

    async def _save_branch(self, event: Envelope[EventData], sandbox: SandboxRecord, saved: AgentBranchSaved) -> None:
        """Record commits of a sandbox. The replica with the lease checks them and adds them to the task's branch."""
        task = await self._live.load_task(sandbox)
        if saved.bundle is None or saved.commit is None or task is None or task.record.branch is None:
            return
        if not belongs_to(saved.bundle, sandbox):
            self._count_late(event, "not_its_own")
            return
        if not of_task.accepts_commits(task.record, sandbox.sandbox):
            self._count_late(event, "old_attempt")
            return
        now = self._live.now()
        commits = ReceivedCommits(
            sandbox=sandbox.sandbox, task=task.record.task, commit=saved.commit, bundle=saved.bundle
        )
        key = f"{sandbox.project}.{task.record.branch}"
        held = await self._live.branches.change(key, lambda record, _: of_branch.received(record, commits, now))
        if held is not None:
            await self._live.branches.flush(held)

    async def _move_task(self, event: Envelope[EventData], sandbox: SandboxRecord, change: TaskChange) -> None:
        reasons: list[str] = []

        def decide(task: TaskRecord) -> TaskRecord:
            reason = lateness(event, sandbox, task)
            reasons[:] = [reason] if reason else []
            return task if reason else change(task)

        if sandbox.task is None:
            return
        held = await self._live.change_task_of(sandbox, decide)
        for reason in reasons if held else ["unknown_task"]:
            self._count_late(event, reason)

    def _count_late(self, event: Envelope[EventData], reason: str) -> None:
        self._live.meters.count("sandherd_late_events_total", reason=reason)
        _log.info("late event ignored", type=event.type, sandbox=event.subject, reason=reason, id=str(event.id))


def _with_reason(outcome: AgentFailed, reason: str) -> AgentFailed:
    """The outcome with the reason why the runtime stopped the sandbox: the worker does not know it."""
    return outcome.model_copy(update={"error": f"{outcome.error}: {reason}"}) if reason else outcome


def _span_values(event: Envelope[EventData]) -> spans.Values:
    return {
        spans.TYPE: event.type,
        spans.PROJECT: event.project,
        spans.TASK_ID: event.taskid,
        spans.SANDBOX_ID: event.subject,
    }


def belongs_to(artifact: ArtifactRef, sandbox: SandboxRecord) -> bool:
    """Whether an artifact belongs to this sandbox.

    A worker may not pass an artifact of another sandbox to the next attempt of its task.
    """
    return has_subject_of(artifact, sandbox.project, sandbox.sandbox)


def has_subject_of(artifact: ArtifactRef, project: str, sandbox: str) -> bool:
    """Whether an artifact reference is under this sandbox's subjects and has a valid name."""
    try:
        return artifact.subject == ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact.artifact)
    except UnsafeNameError:
        return False


def lateness(event: Envelope[EventData], sandbox: SandboxRecord, task: TaskRecord) -> str | None:
    """Why this event no longer changes the task, or None if it does.

    Only events from the sandbox of the current attempt change it, and only the first event that ends it.
    """
    if task.sandbox != sandbox.sandbox or task.attempt != sandbox.attempt:
        return "old_attempt"
    if task.ended:
        return "task_ended"
    if isinstance(event.data, AgentStarted) and task.state is not TaskState.ASSIGNED:
        return "repeated"
    return None


def _saved_fields(
    saved: AgentWorkSaved | AgentTranscriptSaved, artifact: ArtifactRef
) -> dict[str, ArtifactRef | StoredSession]:
    if isinstance(saved, AgentWorkSaved):
        return {"work": artifact}
    if saved.session_id is None:
        return {"transcript": artifact}
    return {"session": StoredSession(session_id=saved.session_id, artifact=artifact)}
