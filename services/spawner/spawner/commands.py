"""Handles the spawner's commands, in order for each task and each sandbox."""

from nacl.public import PrivateKey

from sandherd.bus.consumers.consumer import Dead, Delivery, Outcome, Retry
from sandherd.concurrency import KeyedLocks
from sandherd.contracts.commands import CancelTask, Command, CreateSandbox, RetryTask, SandboxCommand, SubmitTask
from sandherd.contracts.decoder import read_command
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.telemetry import spans
from sandherd.telemetry.traceparents import is_span_unused
from sandherd.telemetry.traces import span
from spawner.records.base_record import StoreUnavailableError
from spawner.sandboxes.commands import SandboxCommands
from spawner.sealed_commands import unsealed
from spawner.tasks.commands import TaskCommands


class Commands:
    """Handles the consumer `spawner-commands`."""

    def __init__(self, tasks: TaskCommands, sandboxes: SandboxCommands, sealing_key: PrivateKey) -> None:
        """`sealing_key` decrypts secrets that clients sealed."""
        self._sealing_key = sealing_key
        self._tasks = tasks
        self._sandboxes = sandboxes
        self._locks: KeyedLocks[str] = KeyedLocks()

    async def handle(self, delivery: Delivery) -> Outcome:
        """Handle one command. Retried if a bucket is unavailable."""
        command = unsealed(read_command(delivery.subject, delivery.data), self._sealing_key)
        async with self._locks.hold(_subject_of(command)):
            with span(spans.HANDLE, command.traceparent, _span_values(command), root=_begins_trace(command)):
                try:
                    return await self._dispatch(command, delivery)
                except StoreUnavailableError as error:
                    return Retry(1.0, str(error))

    async def _dispatch(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        match command.data:
            case SubmitTask() | CancelTask() | RetryTask():
                return await self._tasks.handle(command, delivery)
            case SandboxCommand():
                return await self._sandboxes.handle(command, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"unknown command type {command.type}"))


def _span_values(command: Envelope[Command]) -> spans.Values:
    return {
        spans.TYPE: command.type,
        spans.PROJECT: command.project,
        spans.TASK_ID: getattr(command.data, "task", None),
        spans.SANDBOX_ID: getattr(command.data, "sandbox", None),
    }


def _begins_trace(command: Envelope[Command]) -> bool:
    """Whether the command's span gets the span id of the command's trace context, if that id is unused.

    If the command creates a task or sandbox, the span of this task or sandbox gets the id instead.
    """
    creates = isinstance(command.data, SubmitTask | CreateSandbox)
    return command.traceparent is not None and is_span_unused(command.traceparent) and not creates


def _subject_of(command: Envelope[Command]) -> str:
    """Key of the task or sandbox that the command is about."""
    data = command.data
    return f"{command.project}.{data.sandbox if isinstance(data, SandboxCommand) else getattr(data, 'task', '')}"
