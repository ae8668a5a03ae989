"""What is asked of the spawner durably: take a task, call one off, end a sandbox."""

from collections.abc import Mapping
from typing import Any, Final

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import DONE, Dead, Delivery, Outcome, Retry
from sandherd.contracts.commands import CancelTask, Command, SubmitTask, TerminateSandbox
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.events.lifecycle import TaskRejected
from sandherd.contracts.names import FLEET, derived_uuid
from sandherd.contracts.reading import read_command
from sandherd.telemetry import logs
from sandherd.telemetry.traces import new_traceparent, span
from spawner.live import Live
from spawner.records.store import StoreUnavailableError
from spawner.runtimes.contract import Runtime
from spawner.sandboxes import decisions as of_sandbox
from spawner.tasks import decisions as of_task
from spawner.turns import Turns

_WAITS_FOR_SUBMIT: Final = 3
"""How often a command about something unknown comes again before it is dead: its submission may be behind it."""
_SANDBOX_PREFIX: Final = "sbx-"
_log: Final = logs.get("commands")


class Commands:
    """The handler of `spawner-commands`."""

    def __init__(self, bus: Bus, live: Live, runtimes: Mapping[str, Runtime]) -> None:
        self._bus = bus
        self._live = live
        self._runtimes = runtimes
        self._turns = Turns()

    async def handle(self, delivery: Delivery) -> Outcome:
        """One command, to its end. What the buckets can't take now is tried again."""
        command = read_command(delivery.subject, delivery.data)
        async with self._turns.of(_subject_of(command)):
            with span(f"handle {command.type}", command.traceparent):
                try:
                    return await self._obey(command, delivery)
                except StoreUnavailableError as error:
                    return Retry(1.0, str(error))

    async def _obey(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        match command.data:
            case SubmitTask() as submit:
                return await self._submit(command, submit, delivery)
            case CancelTask() as cancel:
                return await self._cancel(f"{command.project}.{cancel.task}", cancel, delivery)
            case TerminateSandbox() as terminate:
                return await self._terminate(f"{command.project}.{terminate.sandbox}", terminate, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not known here"))

    async def _submit(self, command: Envelope[Any], submit: SubmitTask, delivery: Delivery) -> Outcome:
        refused = refusal(command.project, submit, self._runtimes)
        if refused is not None:
            return await self._reject(command, refused, delivery)
        record = of_task.submitted(command, delivery.at, new_traceparent())
        held, ours = await self._live.tasks.create(record)
        if not ours and not of_task.same_task(held.record, command):
            taken = TaskRejected(reason=f"there is another task {submit.task}", field="task")
            return await self._reject(command, taken, delivery)
        await self._live.tasks.flush(held)
        return DONE

    async def _reject(self, command: Envelope[Any], refused: TaskRejected, delivery: Delivery) -> Outcome:
        """Say so to whoever waits for it; a dead letter would be read by operators alone."""
        await self._bus.publish_event(_rejection(command, refused, delivery))
        return DONE

    async def _cancel(self, key: str, cancel: CancelTask, delivery: Delivery) -> Outcome:
        now = self._live.now()
        held = await self._live.change_task(key, lambda record: of_task.cancelled(record, cancel, now))
        return DONE if held else _unknown("task", cancel.task, delivery)

    async def _terminate(self, key: str, terminate: TerminateSandbox, delivery: Delivery) -> Outcome:
        now = self._live.now()
        reason = terminate.reason or "terminated"
        held = await self._live.change_sandbox(key, lambda record: of_sandbox.stopping(record, reason, now))
        return DONE if held else _unknown("sandbox", terminate.sandbox, delivery)


def _subject_of(command: Envelope[Command]) -> str:
    """What the command is about."""
    data = command.data
    return f"{command.project}.{data.sandbox if isinstance(data, TerminateSandbox) else getattr(data, 'task', '')}"


def refusal(project: str, submit: SubmitTask, runtimes: Mapping[str, Runtime]) -> TaskRejected | None:
    """Why this task can't be taken, or None if it can."""
    if project == FLEET:
        return TaskRejected(reason=f"{FLEET!r} stands for all projects and is none", field="project")
    if submit.task.startswith(_SANDBOX_PREFIX):
        return TaskRejected(reason=f"a task's name may not begin with {_SANDBOX_PREFIX!r}", field="task")
    if submit.spec.runtime not in {None, *runtimes}:
        known = ", ".join(sorted(runtimes))
        return TaskRejected(
            reason=f"there is no runtime {submit.spec.runtime!r} here; there is: {known}", field="spec.runtime"
        )
    return None


def _rejection(command: Envelope[SubmitTask], refused: TaskRejected, delivery: Delivery) -> Envelope[TaskRejected]:
    """The event, the same for every delivery of the command."""
    source = f"/sandherd/spawner/{command.data.task}/{command.id.hex}"
    return wrap(
        refused,
        refused.type,
        source=source,
        sequence=1,
        project=command.project,
        subject=command.data.task,
        time=delivery.at,
        id=derived_uuid(delivery.at, source, 1),
        taskid=command.data.task,
        traceparent=command.traceparent,
    )


def _unknown(kind: str, name: str, delivery: Delivery) -> Outcome:
    if delivery.deliveries < _WAITS_FOR_SUBMIT:
        return Retry(0.5, f"no {kind} {name} yet")
    return Dead(Problem(code=Code.NOT_FOUND, message=f"there is no {kind} {name}", field=kind))
