"""The commands of one sandbox: started once each, watched, ended, and forgotten when there are too many of them."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from signal import Signals
from typing import Final

from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.events import EventData
from sandherd.contracts.events.access import AgentExecCompleted, AgentExecStarted
from sandherd.contracts.requests.access import ExecFields, ExecKillFields, ExecState, ExecStatusFields
from sandherd_worker.access.beneath import Beneath
from sandherd_worker.access.command import Command
from sandherd_worker.access.launching import Launch
from sandherd_worker.access.log import Log
from sandherd_worker.parts import Parts
from sandherd_worker.processes import EXEC_VARIABLE
from sandherd_worker.spool_disk import SpoolError

MOST_RUNNING: Final = 32
MOST_ENDED: Final = 200
KEPT_BYTES: Final = 256 * 1024 * 1024
"""What the output of all commands may weigh together; that of the oldest that has ended goes first."""
_LAST_GRACE: Final = 0.5
_SETTLE: Final = 0.05
"""How long an answer waits for the end of a command that has just said something, in seconds."""

Say = Callable[[EventData], Awaitable[object]]


class Commands:
    """Answers what is asked of commands. `environment` is the agent's."""

    def __init__(self, parts: Parts, environment: Mapping[str, str], beneath: Beneath) -> None:
        self._parts = parts
        self._environment = environment
        self._beneath = beneath
        self._known: dict[str, Command] = {}
        """In the order in which they were started."""
        self._running: dict[str, asyncio.Task[None]] = {}

    async def start(self, asked: ExecFields) -> ExecState:
        """Start it, unless that was done, and wait a little for what comes of it. Raises `ContractError`."""
        command = self._known.get(asked.exec)
        if command is None:
            command = self._begin(asked)
        elif not _same(command.asked, asked):
            raise ContractError(Code.CONFLICT, f"{asked.exec} is another command", field="exec")
        return await self._answer(command, 0, asked.wait_seconds)

    async def status(self, asked: ExecStatusFields) -> ExecState:
        """How far it is. Raises `ContractError`."""
        return await self._answer(self._find(asked.exec), asked.offset, asked.wait_seconds)

    async def kill(self, asked: ExecKillFields) -> ExecState:
        """Send it a signal; nothing happens if it has ended. Raises `ContractError`."""
        command = self._find(asked.exec)
        command.send(Signals[f"SIG{asked.signal}"])
        return command.status(command.log.size)

    async def close(self) -> None:
        """End all of them, and say so."""
        while self._running:
            # Again, because one that has only begun has no process yet.
            await asyncio.gather(*(self._known[name].stop(_LAST_GRACE) for name in self._running))
            if self._running:
                await asyncio.wait(self._running.values(), timeout=_LAST_GRACE)

    def _begin(self, asked: ExecFields) -> Command:
        if sum(not command.ended for command in self._known.values()) >= MOST_RUNNING:
            raise ContractError(
                Code.CONFLICT,
                f"{MOST_RUNNING} commands run in this sandbox, which is as many as may",
                remedy="wait for one of them to end, or kill one",
            )
        folder = self._beneath.folder(asked.cwd, field="cwd")
        log = Log(self._parts.who.state_dir, asked.exec, self._make_room)
        command = self._known[asked.exec] = Command(asked, log, self._parts.families)
        environment = {**self._environment, **asked.env, **self._marks(asked.exec)}
        what = Launch(argv=asked.command, environment=environment, folder=folder, stdin=asked.stdin)
        self._running[asked.exec] = asyncio.create_task(self._attend(command, what))
        self._forget()
        return command

    async def _attend(self, command: Command, what: Launch) -> None:
        asked, parts = command.asked, self._parts
        try:
            await parts.emitter.emit(AgentExecStarted(exec_id=asked.exec, command=asked.command, cwd=asked.cwd))
            await command.run(what, parts.reaper, parts.emitter.redactor)
            await parts.emitter.emit(_completed(command))
        except SpoolError as error:
            # The worker is about to end for that; its last words say why.
            command.fail(f"what happens here can't be kept: {error}")
        finally:
            self._running.pop(asked.exec, None)

    async def _answer(self, command: Command, offset: int, seconds: float) -> ExecState:
        await command.wait(offset, seconds)
        if not command.ended:
            await command.wait(command.log.size, min(_SETTLE, seconds))
        return command.status(offset)

    def _find(self, name: str) -> Command:
        command = self._known.get(name)
        if command is None:
            raise ContractError(
                Code.NOT_FOUND,
                f"there is no command {name} in this sandbox, or it is not kept any more",
                field="exec",
                remedy=f"`sandherd events {self._parts.who.sandbox} --type agent.exec_started` shows them",
            )
        return command

    def _marks(self, name: str) -> dict[str, str]:
        """What tells whose it is, last, so that nobody can say otherwise."""
        ours = {key: value for key, value in self._environment.items() if key.startswith("SANDHERD_")}
        return {**ours, EXEC_VARIABLE: name}

    def _make_room(self, size: int) -> bool:
        """Whether there is room for so many bytes more, at the cost of what ended longest ago."""
        ended = [name for name, command in self._known.items() if command.ended]
        while self._weight() + size > KEPT_BYTES and ended:
            self._known.pop(ended.pop(0)).log.remove()
        return self._weight() + size <= KEPT_BYTES

    def _forget(self) -> None:
        ended = [name for name, command in self._known.items() if command.ended]
        for name in ended[: max(0, len(ended) - MOST_ENDED)]:
            self._known.pop(name).log.remove()

    def _weight(self) -> int:
        return sum(command.log.size for command in self._known.values())


def _same(first: ExecFields, second: ExecFields) -> bool:
    fields = ("command", "cwd", "env", "stdin", "timeout_seconds")
    return all(getattr(first, field) == getattr(second, field) for field in fields)


def _completed(command: Command) -> AgentExecCompleted:
    assert command.ended_at is not None
    assert command.state != "running"
    return AgentExecCompleted(
        exec_id=command.asked.exec,
        state=command.state,
        exit_code=command.exit_code,
        signal=command.signal,
        duration_ms=max(0.0, (command.ended_at - command.started_at).total_seconds() * 1000),
        output_bytes=command.log.size + command.log.dropped,
    )
