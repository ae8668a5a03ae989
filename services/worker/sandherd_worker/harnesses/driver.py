"""The harness of agents that need an SDK: it runs in a process of its own, the driver, and keeps all promises here.

The driver speaks by `sandherd_drivers.wire`. It is in its agent's domain of trust: it may end at any moment, say
anything, and be silent. When it ends, everything that it started ends with it.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentStreamError
from sandherd_worker.harnesses import driver_lines as lines
from sandherd_worker.harnesses.approving import Desk
from sandherd_worker.harnesses.base import CannotTakeError, Ended
from sandherd_worker.harnesses.conclusion import Conclusion
from sandherd_worker.harnesses.driver_task import Around, Task, outcome, to_agent
from sandherd_worker.harnesses.event_lines import EventLines
from sandherd_worker.harnesses.judging import MemoryKills, judge
from sandherd_worker.harnesses.output import Output
from sandherd_worker.harnesses.program import Program, Running, launch
from sandherd_worker.harnesses.receipts import Receipts
from sandherd_worker.harnesses.usage import Used
from sandherd_worker.processes import end
from sandherd_worker.tasks import end_tasks

_LEFTOVER_GRACE: Final = 0.5
"""How long what the driver started may go on after it, in seconds."""
_SHARE_IN_ORDER: Final = 0.7
"""How much of a grace a driver has to end in order, before it is sent a SIGTERM."""
_GONE: Final = "the agent has ended"


class DriverHarness:
    """Runs one driver, once. A `Harness`."""

    def __init__(self, program: Program, task: Task, around: Around) -> None:
        self._program, self._task, self._around = program, task, around
        self._output = Output(around.redactor, around.voice.show)
        self._lines = EventLines(self._say, lambda: self._turn, self._heed)
        self._desk = Desk(task.approvals, around.voice.say, self._decide)
        self._receipts = Receipts()
        self._conclusion = Conclusion(self._conclude)
        self._used = Used()
        self._memory_kills = MemoryKills(around.memory_kills)
        self._writing = asyncio.Lock()
        self._ready = asyncio.Event()
        self._turn = 1
        self._session: str | None = None
        self._stopped = False
        self._broke: Ended | None = None
        self._running: Running | None = None
        self._attending: asyncio.Task[None] | None = None
        self._done: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    # --- what the worker asks

    async def start(self) -> None:
        """Start the driver and give it the task."""
        try:
            self._running = await launch(self._program, self._around.reaper)
        except (OSError, ValueError) as error:
            reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            self._conclude(Ended(error_type="start", error=f"{self._program.argv[0]}: {reason}"))
            await self._around.part()
            self._receipts.close("the agent could not be started")
            self._ready.set()
            return
        self._attending = asyncio.create_task(self._attend(self._running))
        self._attending.add_done_callback(lambda over: over.cancelled() or over.exception())
        await self._around.offer(self._desk.ask_person, lambda: self._turn)
        with suppress(OSError):
            await self._write(self._task.begin())

    async def done(self) -> Ended:
        """Wait for what comes of the task: what the driver says, or its end."""
        return await asyncio.shield(self._done)

    async def ended(self) -> Ended:
        """Wait until the driver and all it has started are gone, and everything they said is said.

        A driver that breaks when it has done its task has not ended as the task has.
        """
        if self._attending is not None:
            await asyncio.shield(self._attending)
        return self._broke or await self.done()

    @property
    def follows_up(self) -> bool:
        """Whether the driver is still there."""
        return self._running is not None and not self._running.exit.done() and not self._stopped

    async def inject(self, message: InboxMessage) -> None:
        """Give it a message, and wait until the agent has it; an `interrupt` stops the turn first."""
        if message.message_type == "approval":
            await self._desk.answer(message)
            return
        await self._ready.wait()
        with self._conclusion.giving():
            await self._give(message)

    async def _give(self, message: InboxMessage) -> None:
        if message.message_type == "interrupt":
            await self.interrupt()
        receipt = self._receipts.expect(message.message)
        try:
            await self._write({"do": "message", **to_agent(message)})
        except OSError:
            raise CannotTakeError(_GONE) from None
        refusal = await receipt
        if refusal is not None:
            raise CannotTakeError(refusal)

    async def interrupt(self) -> None:
        """Stop the turn; the session stays."""
        with suppress(OSError):
            await self._write({"do": "interrupt"})

    async def stop(self, grace: float) -> None:
        """Ask it to end in order, then SIGTERM, and SIGKILL after `grace` seconds; what came of its task stays."""
        self._stopped = True
        if self._running is None or self._attending is None:
            return
        asking = asyncio.create_task(self._write_stop())
        for seconds, what in ((grace * _SHARE_IN_ORDER, SIGTERM), (grace * (1 - _SHARE_IN_ORDER), SIGKILL)):
            await asyncio.wait([self._running.exit], timeout=seconds)
            self._running.signal(what)
        await end_tasks([asking])
        await asyncio.wait([self._attending])

    # --- to the driver

    async def _write_stop(self) -> None:
        with suppress(OSError):
            await self._write({"do": "stop"})

    async def _write(self, command: Mapping[str, Any]) -> None:
        """Raises `BrokenPipeError` if nobody hears it."""
        if self._running is None:
            raise BrokenPipeError
        async with self._writing:
            await self._running.write(json.dumps(command).encode() + b"\n")

    async def _decide(self, question: str, granted: bool, reason: str | None) -> None:  # noqa: FBT001  # an answer
        with suppress(OSError):
            await self._write({"do": "decide", "approval_id": question, "granted": granted, "reason": reason})

    # --- from the driver

    async def _say(self, data: EventData) -> None:
        self._used.count(data)
        await self._around.voice.say(data)

    async def _heed(self, type: str, data: dict[str, Any]) -> None:
        match lines.read_driver_line(type, data):
            case lines.Ready(session_id=session):
                self._session = session
                self._ready.set()
            case lines.Taken(message=message):
                self._receipts.answer(message, None)
            case lines.Refused(message=message, reason=reason):
                self._receipts.answer(message, reason or "the agent did not take it")
            case lines.Turn(turn=turn, state=state):
                await self._on_turn(turn, working=state == "running")
            case lines.Ask(approval_id=question, tool=tool, input=input, reason=reason):
                await self._desk.ask(question, tool, input, reason, self._turn)
            case lines.TranscriptLine(path=path, session_id=session):
                await self._around.keep(Path(path), session)
            case lines.Result() as result:
                self._conclusion.result(outcome(result, self._session, stopped=self._stopped))

    async def _on_turn(self, turn: int, *, working: bool) -> None:
        self._turn = turn
        if not working:
            self._desk.withdraw()
        await self._around.turned(turn, working)
        self._conclusion.turn(working=working)

    def _conclude(self, ended: Ended) -> None:
        """What came of the task; the first word counts."""
        if not self._done.done():
            output = self._output.tail if ended.final_output is None else ended.final_output
            turns = max(ended.turns, self._turn)
            self._done.set_result(replace(ended, turns=turns, final_output=output, used=dict(self._used.totals)))

    # --- its process

    async def _attend(self, running: Running) -> None:
        readers = asyncio.gather(self._output.read(running.output), self._lines.read(running.events))
        try:
            either: list[asyncio.Future[Any]] = [running.exit, readers]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if readers.done() and readers.exception() is not None:
                # What it says can't be kept any more, so it may not go on.
                running.signal(SIGKILL)
            code = await running.exit
            self._part()
            await end(self._around.below, _LEFTOVER_GRACE)
            await readers
            await self._over(code)
        except BaseException as error:
            if not self._done.done():
                self._done.set_exception(error)
            raise
        finally:
            readers.cancel()
            self._part()
            await self._desk.close()
            await self._around.part()
            running.close()

    def _part(self) -> None:
        """Nothing can be given to it any more."""
        self._receipts.close(_GONE)
        self._ready.set()

    async def _over(self, code: int) -> None:
        """The driver is gone; if that is not what was asked of it, it is said."""
        ended = judge(code, stopped=self._stopped, memory_kills=self._memory_kills.new())
        if ended.error_type is None and not self._done.done():
            ended = replace(ended, error_type="internal", error="it ended without saying what came of its task")
        if not self._stopped and ended.error_type is not None:
            await self._around.voice.say(
                AgentStreamError(
                    turn=self._turn,
                    error=ended.error,
                    error_type="sigkill" if ended.signal == SIGKILL else "command_failed",
                    final_output_length=len(self._output.tail),
                )
            )
        self._conclusion.close()
        if self._done.done() and not self._stopped:
            self._broke = ended if ended.error_type is not None else None
            await self._around.turned(self._turn, False)
        self._conclude(replace(ended, session_id=self._session))
