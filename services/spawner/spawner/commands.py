"""What is asked of the spawner durably, one thing after the other for each task and each sandbox."""

from nacl.public import PrivateKey

from sandherd.bus.consuming import Dead, Delivery, Outcome, Retry
from sandherd.contracts.commands import CancelTask, Command, RetryTask, SandboxCommand, SubmitTask
from sandherd.contracts.envelope import Envelope
from sandherd.contracts.errors import Code, Problem
from sandherd.contracts.reading import read_command
from sandherd.telemetry import spans
from sandherd.telemetry.traces import span
from spawner.records.unavailable import StoreUnavailableError
from spawner.sandboxes.commands import SandboxCommands
from spawner.sealed_commands import unsealed
from spawner.tasks.commands import TaskCommands
from spawner.turns import Turns


class Commands:
    """The handler of `spawner-commands`."""

    def __init__(self, tasks: TaskCommands, sandboxes: SandboxCommands, sealing: PrivateKey) -> None:
        """`sealing` opens the secrets that clients have sealed."""
        self._sealing = sealing
        self._tasks = tasks
        self._sandboxes = sandboxes
        self._turns = Turns()

    async def handle(self, delivery: Delivery) -> Outcome:
        """One command, to its end. What the buckets can't take now is tried again."""
        command = unsealed(read_command(delivery.subject, delivery.data), self._sealing)
        async with self._turns.of(_subject_of(command)):
            with span(spans.HANDLE, command.traceparent, _told(command)):
                try:
                    return await self._obey(command, delivery)
                except StoreUnavailableError as error:
                    return Retry(1.0, str(error))

    async def _obey(self, command: Envelope[Command], delivery: Delivery) -> Outcome:
        match command.data:
            case SubmitTask() | CancelTask() | RetryTask():
                return await self._tasks.obey(command, delivery)
            case SandboxCommand():
                return await self._sandboxes.obey(command, delivery)
            case _:
                return Dead(Problem(code=Code.UNKNOWN_TYPE, message=f"{command.type} is not known here"))


def _told(command: Envelope[Command]) -> spans.Values:
    return {
        spans.TYPE: command.type,
        spans.PROJECT: command.project,
        spans.TASK_ID: getattr(command.data, "task", None),
        spans.SANDBOX_ID: getattr(command.data, "sandbox", None),
    }


def _subject_of(command: Envelope[Command]) -> str:
    """What the command is about."""
    data = command.data
    return f"{command.project}.{data.sandbox if isinstance(data, SandboxCommand) else getattr(data, 'task', '')}"
