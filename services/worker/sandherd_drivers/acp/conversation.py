"""The driver: the task and every message become prompts, one turn after the other.

The protocol has no way to give a running turn a message. So a message waits until the turn has ended and is the next
prompt, together with those that came meanwhile; one of the type `interrupt` ends the turn for that. It is said to be
taken only when the agent has shown that it has it: by an update, a request, or its answer.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from sandherd_drivers.acp.client import WorkClient
from sandherd_drivers.acp.outcomes import Outcome, at_start, of_exit
from sandherd_drivers.acp.program import AgentProgram
from sandherd_drivers.acp.receipts import Receipts
from sandherd_drivers.acp.session import Opened, Session, UnansweredError
from sandherd_drivers.acp.turns import Turns
from sandherd_drivers.acp.updates import Updates
from sandherd_drivers.acp.work_tree import WorkTree
from sandherd_drivers.commands import Command
from sandherd_drivers.leave import asks
from sandherd_drivers.wire import Begin, Interrupt, Message, Stop, Wire

_BEGINNING: Final = 120.0
"""Seconds until an agent must have begun a session: it may be one that installs itself first."""
_STOPPING: Final = 2.0
"""Seconds that a cancelled turn has when everything ends."""
_STOPPED: Final = Outcome("stopped", "stopped", "it was stopped before it was done")
_SUDDEN: Final = {"signal": "sigkill", "exit_status": "command_failed"}


class Conversation:
    """One agent, its session, and what is to be said to it."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._receipts = Receipts(wire)
        self._called = asyncio.Event()
        self._program: AgentProgram | None = None
        self._session: Session | None = None
        self._opened: Opened | None = None
        self._client: WorkClient | None = None
        self._turns: Turns | None = None
        self._told = self._leaving = False
        self._rest = False
        """After this turn the agent is to wait, whatever there is to do: it was interrupted."""

    async def serve(self) -> None:
        """Heed the commands until the end, which comes too when the agent ends."""
        commands = self._wire.commands()
        if not isinstance(begin := await anext(commands), Begin):
            return
        working = asyncio.create_task(self._work(begin))
        reading = asyncio.create_task(self._read(commands))
        await asyncio.wait({working, reading}, return_when=asyncio.FIRST_COMPLETED)
        reading.cancel()
        await self._leave(working)

    # --- what is wanted

    async def _read(self, commands: AsyncIterator[Command]) -> None:
        async for command in commands:
            match command:
                case Message():
                    self._hear(command)
                case Interrupt():
                    self._interrupt()
                case Stop():
                    return
                case _:
                    pass

    def _hear(self, message: Message) -> None:
        if not self._receipts.hear(message):
            return
        self._called.set()
        if message.message_type == "interrupt" and self._turns is not None:
            self._turns.cancel()

    def _interrupt(self) -> None:
        """Stop the turn, also one that is about to begin; an agent that waits goes on to."""
        if self._turns is None:
            self._rest = True
        elif self._turns.running:
            self._rest = True
            self._turns.cancel()
        else:
            self._wire.turn(self._number, "idle")

    # --- what is done

    async def _work(self, begin: Begin) -> None:
        try:
            turns = self._turns = await self._open(begin)
        except UnansweredError as error:
            self._end(at_start(error.outcome))
            return
        outcome = await turns.run([begin.task], self._receipts, cancelled=self._rest)
        while not outcome.gone and not self._leaving:
            if not self._receipts.in_time() or self._rest:
                self._idle(outcome, turns.number)
            outcome = await self._next(turns)
        self._end(outcome)

    async def _open(self, begin: Begin) -> Turns:
        work_dir, argv = Path(begin.work_dir), begin.harness["argv"]
        try:
            program = await AgentProgram.start(argv, work_dir)
        except (OSError, ValueError) as error:
            raise UnansweredError(Outcome(None, "start", f"{argv[0]!r} could not be started: {error}")) from None
        program.exit.add_done_callback(lambda _: self._called.set())
        updates = Updates(resumed=begin.resume is not None)
        client = self._client = WorkClient(self._wire, updates, WorkTree(work_dir), asks=asks(begin.harness))
        self._program, self._session = (
            program,
            Session(program, client, work_dir, begin.harness.get("mcp_servers") or {}),
        )
        opened = self._opened = await self._session.open(begin.resume, _BEGINNING)
        self._wire.ready(session_id=opened.session_id, model=opened.model, version=opened.version)
        return Turns(self._wire, program, self._session, client)

    async def _next(self, turns: Turns) -> Outcome:
        """The outcome of the next turn, which begins when there is something to say."""
        assert self._program is not None
        while not self._receipts.waiting and not self._leaving and not self._program.exit.done():
            self._called.clear()
            await self._called.wait()
        if self._leaving:
            return _STOPPED
        if not self._receipts.waiting:
            return of_exit(self._program.exit.result())
        return await turns.run(self._receipts.give(), self._receipts)

    # --- what came of it

    def _idle(self, outcome: Outcome, turn: int) -> None:
        self._rest = False
        if not outcome.interrupted:
            self._tell(outcome)
        self._wire.turn(turn, "idle")

    def _end(self, outcome: Outcome) -> None:
        """There will be no more turns."""
        if outcome.gone:
            kind = _SUDDEN.get(outcome.error_type or "", "unknown") if self._turns else "stream_init"
            fields = {"error": outcome.error, "error_type": kind, "final_output_length": len(self._last or "")}
            self._wire.event("agent.stream_error", turn=self._number, **fields)
        self._tell(outcome)

    def _tell(self, outcome: Outcome) -> None:
        """Say what came of the task, unless that is said."""
        if self._told:
            return
        self._told = True
        self._charge()
        outcome = _STOPPED if outcome.interrupted else outcome
        self._wire.result(
            error_type=outcome.error_type,
            error=outcome.error,
            signal=outcome.signal,
            turns=self._number,
            final_output=self._last,
            stop_reason=outcome.stop_reason,
            session_id=self._opened.session_id if self._opened else None,
        )

    @property
    def _last(self) -> str | None:
        return self._client.updates.last_message if self._client else None

    @property
    def _number(self) -> int:
        return self._turns.number if self._turns else 0

    async def _leave(self, working: asyncio.Task[None]) -> None:
        """End everything in order; a turn that still runs is cancelled."""
        self._leaving = True
        self._called.set()
        if self._turns is not None:
            self._turns.cancel()
            await asyncio.wait({working}, timeout=self._wire.within(_STOPPING))
        working.cancel()
        await asyncio.wait({working})
        try:
            if working.cancelled() or working.exception() is None:
                self._tell(_STOPPED)
            self._receipts.close("the agent has ended")
        finally:
            await self._close()
        if not working.cancelled():
            working.result()

    async def _close(self) -> None:
        if self._session is not None:
            await self._session.close()
        if self._client is not None:
            self._client.say(self._client.updates.end())
            self._charge()

    def _charge(self) -> None:
        """Say what is not charged yet: of a turn that has not ended, or what was told after one."""
        if self._client is not None:
            self._client.say(self._client.updates.charged())
