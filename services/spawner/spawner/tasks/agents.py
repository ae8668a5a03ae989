"""What agents say that moves their task: that they have started, and how they ended."""

from collections.abc import Callable
from typing import Final

from sandherd.bus.consuming import DONE, Delivery, Outcome, Retry
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.events import ArtifactRef, EventData
from sandherd.contracts.events.access import AgentTranscriptSaved, AgentWorkSaved
from sandherd.contracts.events.agent import AgentCompleted, AgentFailed, AgentShutdown, AgentStarted
from sandherd.contracts.names import UnsafeNameError
from sandherd.contracts.offers import KeptSession
from sandherd.contracts.reading import read_event
from sandherd.contracts.states import TaskState
from sandherd.contracts.subjects import ARTIFACT
from sandherd.telemetry import logs, spans
from sandherd.telemetry.traces import span
from spawner.live import Live
from spawner.records.unavailable import StoreUnavailableError
from spawner.sandboxes import decisions as of_sandbox
from spawner.sandboxes.record import SandboxRecord
from spawner.tasks import decisions as of_task
from spawner.tasks.record import TaskRecord
from spawner.turns import Turns

Move = Callable[[TaskRecord], TaskRecord]
_log: Final = logs.get("agents")


class Agents:
    """The handler of `spawner-agents`. Which task a sandbox works for is looked up, never taken from its worker."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._turns = Turns()

    async def handle(self, delivery: Delivery) -> Outcome:
        """One event, taken in or counted as late."""
        event = read_event(delivery.subject, delivery.data)
        async with self._turns.of(f"{event.project}.{event.subject}"):
            with span(spans.HANDLE, event.traceparent, _told(event)):
                try:
                    return await self._hear(event)
                except StoreUnavailableError as error:
                    return Retry(1.0, str(error))

    async def _hear(self, event: Envelope[EventData]) -> Outcome:
        held = await self._live.sandboxes.load(f"{event.project}.{event.subject}")
        if held is None:
            self._late(event, "unknown_sandbox")
            return DONE
        match event.data:
            case AgentStarted():
                await self._started(event, held.record)
            case AgentCompleted() | AgentFailed() as outcome:
                await self._ended(event, held.record, outcome)
            case AgentWorkSaved() | AgentTranscriptSaved() as saved:
                await self._saved(event, held.record, saved)
            case AgentShutdown() as last:
                _log.info("last word", sandbox=event.subject, reason=last.reason)
            case _:
                pass
        return DONE

    async def _started(self, event: Envelope[EventData], sandbox: SandboxRecord) -> None:
        now = self._live.now()
        first = sandbox.running_at is None
        held = await self._live.change_sandbox(
            sandbox.key, lambda record: of_sandbox.running(record, now), publish=False
        )
        await self._move_task(event, sandbox, lambda task: of_task.running(task, sandbox.sandbox, now))
        if held:
            await self._live.flush_sandbox(held)
        if first:
            took = (now - sandbox.requested_at).total_seconds()
            self._live.meters.observe("sandherd_spawn_seconds", max(0.0, took), runtime=sandbox.runtime)

    async def _ended(
        self, event: Envelope[EventData], sandbox: SandboxRecord, outcome: AgentCompleted | AgentFailed
    ) -> None:
        now = self._live.now()
        await self._move_task(event, sandbox, lambda task: of_task.ended(task, sandbox.sandbox, outcome, now))

    async def _saved(
        self, event: Envelope[EventData], sandbox: SandboxRecord, saved: AgentWorkSaved | AgentTranscriptSaved
    ) -> None:
        """Something was put by for the next attempt: also after the end of this one, for whichever comes next."""
        if saved.artifact is None:
            return
        if not lies_with(saved.artifact, sandbox):
            self._late(event, "not_its_own")
            return
        left = _left(saved, saved.artifact)
        held = await self._live.change_task_of(sandbox, lambda task: of_task.left(task, sandbox.sandbox, left))
        if held and not of_task.has_left(held.record, sandbox.sandbox):
            self._late(event, "old_attempt")

    async def _move_task(self, event: Envelope[EventData], sandbox: SandboxRecord, move: Move) -> None:
        reasons: list[str] = []

        def decide(task: TaskRecord) -> TaskRecord:
            reason = lateness(event, sandbox, task)
            reasons[:] = [reason] if reason else []
            return task if reason else move(task)

        if sandbox.task is None:
            return
        held = await self._live.change_task_of(sandbox, decide)
        for reason in reasons if held else ["unknown_task"]:
            self._late(event, reason)

    def _late(self, event: Envelope[EventData], reason: str) -> None:
        self._live.meters.count("sandherd_late_events_total", reason=reason)
        _log.info("late event", type=event.type, sandbox=event.subject, reason=reason, id=str(event.id))


def _told(event: Envelope[EventData]) -> spans.Values:
    return {
        spans.TYPE: event.type,
        spans.PROJECT: event.project,
        spans.TASK_ID: event.taskid,
        spans.SANDBOX_ID: event.subject,
    }


def lies_with(artifact: ArtifactRef, sandbox: SandboxRecord) -> bool:
    """Whether it is the sandbox's own: a worker may not have another's handed to the next attempt of its task."""
    return lies_under(artifact, sandbox.project, sandbox.sandbox)


def lies_under(artifact: ArtifactRef, project: str, sandbox: str) -> bool:
    """Whether a reference is to something under this sandbox's subjects, by a name that may stand there."""
    try:
        return artifact.subject == ARTIFACT.fill(project=project, sandbox=sandbox, artifact=artifact.artifact)
    except UnsafeNameError:
        return False


def lateness(event: Envelope[EventData], sandbox: SandboxRecord, task: TaskRecord) -> str | None:
    """Why this event changes nothing of the task any more, or None if it does.

    The fence: only the sandbox that the task's current attempt names counts, and only its first end.
    """
    if task.sandbox != sandbox.sandbox or task.attempt != sandbox.attempt:
        return "old_attempt"
    if task.ended:
        return "task_ended"
    if isinstance(event.data, AgentStarted) and task.state is not TaskState.ASSIGNED:
        return "repeated"
    return None


def _left(saved: AgentWorkSaved | AgentTranscriptSaved, artifact: ArtifactRef) -> dict[str, ArtifactRef | KeptSession]:
    if isinstance(saved, AgentWorkSaved):
        return {"work": artifact}
    if saved.session_id is None:
        return {"transcript": artifact}
    return {"session": KeptSession(session_id=saved.session_id, artifact=artifact)}
