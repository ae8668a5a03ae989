"""The commands of one sandbox: starts each once, watches and ends it, and deletes the oldest commands above a limit."""

import asyncio
from collections.abc import Mapping
from signal import Signals
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events.access import AgentExecCompleted, AgentExecStarted
from sandherd.contracts.requests.access import ExecFields, ExecKillFields, ExecState, ExecStatusFields
from sandherd.contracts.requests.terminal import ExecInputFields, InputAccepted
from sandherd_worker.access.command import UserCommand
from sandherd_worker.access.command_launch import CommandLaunch
from sandherd_worker.access.command_log import CommandLog
from sandherd_worker.access.safe_paths import WorkTreePaths
from sandherd_worker.processes import EXEC_VARIABLE
from sandherd_worker.spool_disk import SpoolError
from sandherd_worker.worker_resources import WorkerResources

MAX_RUNNING: Final = 32
MAX_ENDED: Final = 200
MAX_TOTAL_BYTES: Final = 256 * 1024 * 1024
"""Maximum total output of all commands, in bytes. Above it, the output of the commands that ended first is deleted."""
_LAST_GRACE: Final = 0.5
"""How long commands have between SIGTERM and SIGKILL when the sandbox ends, in seconds."""
_END_WAIT_SECONDS: Final = 0.05
"""How long a reply waits for the end of a command that has just written output."""


class UserCommands:
    """Handles requests about commands. `environment` is the agent's."""

    def __init__(self, resources: WorkerResources, environment: Mapping[str, str], tree: WorkTreePaths) -> None:
        self._resources = resources
        self._environment = environment
        self._tree = tree
        self._known: dict[str, UserCommand] = {}
        """The commands, in the order in which they were started."""
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, request: ExecFields) -> ExecState:
        """Start a command, unless it was started already, and wait for output for at most `wait_seconds`.

        Raises `ContractError`.
        """
        command = self._known.get(request.exec)
        if command is None:
            command = self._start(request)
        elif not _is_same_command(command.request, request):
            raise ContractError(Code.CONFLICT, f"{request.exec} is another command", field="exec")
        return await self._wait_state(command, 0, request.wait_seconds)

    async def status(self, request: ExecStatusFields) -> ExecState:
        """The state and the output of a command. Raises `ContractError`."""
        return await self._wait_state(self._find(request.exec), request.offset, request.wait_seconds)

    async def kill(self, request: ExecKillFields) -> ExecState:
        """Send a signal to a command; without effect if it has ended. Raises `ContractError`."""
        command = self._find(request.exec)
        command.send(Signals[f"SIG{request.signal}"])
        return command.status(command.log.size)

    async def accept_input(self, request: ExecInputFields) -> InputAccepted:
        """Write to the terminal of a command. Raises `ContractError`."""
        command = self._find(request.exec)
        return InputAccepted(exec=request.exec, accepted=command.accept(request))

    async def close(self) -> None:
        """End all commands, and publish their end."""
        while self._running:
            # Repeated, because a command that is just starting has no process yet.
            await asyncio.gather(*(self._known[name].stop(_LAST_GRACE) for name in self._running))
            if self._running:
                await asyncio.wait(self._running.values(), timeout=_LAST_GRACE)

    def _start(self, request: ExecFields) -> UserCommand:
        if sum(not command.ended for command in self._known.values()) >= MAX_RUNNING:
            raise ContractError(
                Code.CONFLICT,
                f"{MAX_RUNNING} commands run in this sandbox, which is the limit",
                remedy="wait for one of them to end, or kill one",
            )
        if request.terminal is not None and request.stdin is not None:
            raise ContractError(
                Code.INVALID_FIELD,
                "stdin: a command with a terminal has none",
                field="stdin",
                remedy="send it with exec_input",
            )
        folder = self._tree.folder(request.cwd, field="cwd")
        log = CommandLog(self._resources.assignment.state_dir, request.exec, self._free_output)
        command = self._known[request.exec] = UserCommand(request, log, self._resources.ownership)
        environment = {**self._environment, **request.env, **self._ownership_variables(request.exec)}
        command_launch = CommandLaunch(
            argv=request.command,
            environment=environment,
            folder=folder,
            stdin=request.stdin,
            terminal=request.terminal,
        )
        self._running[request.exec] = asyncio.create_task(self._attend(command, command_launch))
        self._delete_oldest()
        return command

    async def _attend(self, command: UserCommand, command_launch: CommandLaunch) -> None:
        request, resources = command.request, self._resources
        try:
            await resources.emitter.emit(
                AgentExecStarted(exec_id=request.exec, command=request.command, cwd=request.cwd)
            )
            await command.run(command_launch, resources.reaper, resources.emitter.redactor)
            await resources.emitter.emit(_completed(command))
        except SpoolError as error:
            # The worker will end because of this error; its last event has the reason.
            command.fail(f"events can't be stored: {error}")
        finally:
            self._running.pop(request.exec, None)

    async def _wait_state(self, command: UserCommand, offset: int, seconds: float) -> ExecState:
        await command.wait(offset, seconds)
        if not command.ended:
            await command.wait(command.log.size, min(_END_WAIT_SECONDS, seconds))
        return command.status(offset)

    def _find(self, name: str) -> UserCommand:
        command = self._known.get(name)
        if command is None:
            sandbox = self._resources.assignment.sandbox
            raise ContractError(
                Code.NOT_FOUND,
                f"there is no command {name} in this sandbox, or it was deleted",
                field="exec",
                remedy=f"list the commands of {sandbox}: their events have the type agent.exec_started",
            )
        command.requested()
        return command

    def _ownership_variables(self, name: str) -> dict[str, str]:
        """The variables that mark the owner of a command. Added last, so that a request can't override them."""
        worker_variables = {key: value for key, value in self._environment.items() if key.startswith("SANDHERD_")}
        return {**worker_variables, EXEC_VARIABLE: name}

    def _free_output(self, size: int) -> bool:
        """Delete the output of the commands that ended first, as needed for `size` bytes. Returns whether they fit."""
        ended = [name for name, command in self._known.items() if command.ended]
        while self._total_bytes() + size > MAX_TOTAL_BYTES and ended:
            self._known.pop(ended.pop(0)).log.remove()
        return self._total_bytes() + size <= MAX_TOTAL_BYTES

    def _delete_oldest(self) -> None:
        ended = [name for name, command in self._known.items() if command.ended]
        for name in ended[: max(0, len(ended) - MAX_ENDED)]:
            self._known.pop(name).log.remove()

    def _total_bytes(self) -> int:
        return sum(command.log.size for command in self._known.values())


def _is_same_command(first: ExecFields, second: ExecFields) -> bool:
    fields = ("command", "cwd", "env", "stdin", "timeout_seconds", "terminal")
    return all(getattr(first, field) == getattr(second, field) for field in fields)


def _completed(command: UserCommand) -> AgentExecCompleted:
    assert command.ended_at is not None
    assert command.state != "running"
    return AgentExecCompleted(
        exec_id=command.request.exec,
        state=command.state,
        exit_code=command.exit_code,
        signal=command.signal,
        duration_ms=max(0.0, (command.ended_at - command.started_at).total_seconds() * 1000),
        output_bytes=command.log.size + command.log.dropped,
    )
