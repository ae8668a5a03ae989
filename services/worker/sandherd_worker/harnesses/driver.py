"""The harness of agents that need an SDK: it runs in a process of its own, the driver, and keeps all promises here.

The driver speaks by `sandherd_drivers.wire`. It is in its agent's domain of trust: it may end at any moment, say
anything, and be silent. When it ends, everything that it started ends with it.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, Final

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events import EventData
from sandherd_worker.harnesses import driver_lines as lines
from sandherd_worker.harnesses.approving import Desk
from sandherd_worker.harnesses.base import CannotTakeError, Ended
from sandherd_worker.harnesses.conclusion import Conclusion
from sandherd_worker.harnesses.driver_task import Around, Task, as_line, outcome, to_agent
from sandherd_worker.harnesses.event_lines import EventLines
from sandherd_worker.harnesses.judging import MemoryKills, broke_off, judge, not_started
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
        self._desk = Desk(task.approvals, around.voice.say, self._decide, lambda: self._stopped)
        self._receipts = Receipts()
        self._conclusion = Conclusion(self._conclude)
        self._used = Used()
        self._memory_kills = MemoryKills(around.memory_kills)
        self._writing = asyncio.Lock()
        self._ready = asyncio.Event()
        self._turn = 1
        self._session: str | None = None
        self._stopped = self._interrupted = False
        self._broke: Ended | None = None
        self._running: Running | None = None
        self._transcript: tuple[Path, str] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._attending: asyncio.Task[None] | None = None
        self._done: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    # --- what the worker asks

    async def start(self) -> None:
        """Start the driver. It is given the task meanwhile: one that doesn't read it keeps nobody waiting."""
        try:
            self._running = await launch(self._program, self._around.reaper)
        except (OSError, ValueError) as error:
            self._conclude(not_started(self._program.argv[0], error))
            await self._around.part()
            self._receipts.close("the agent could not be started")
            self._ready.set()
            return
        self._attending = asyncio.create_task(self._attend(self._running))
        self._attending.add_done_callback(lambda over: over.cancelled() or over.exception())
        await self._around.offer(self._desk.ask_person, lambda: self._turn)
        await self._writing.acquire()
        self._beginning = asyncio.create_task(self._begin(self._running))

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

    async def interrupt(self, _message: str | None = None, /) -> None:
        """Stop the turn; the session stays."""
        self._interrupted = True
        await self._tell({"do": "interrupt"})

    async def stop(self, grace: float) -> None:
        """Ask it to end in order, then SIGTERM, and SIGKILL after `grace` seconds; what came of its task stays."""
        self._stopped = True
        if self._running is None or self._attending is None:
            return
        in_order = grace * _SHARE_IN_ORDER
        asking = asyncio.create_task(self._tell({"do": "stop", "grace": in_order}))
        for seconds, what in ((in_order, SIGTERM), (grace - in_order, SIGKILL)):
            await asyncio.wait([self._running.exit], timeout=seconds)
            self._running.signal(what)
        await end_tasks([asking])
        await asyncio.wait([self._attending])

    # --- to the driver

    async def _begin(self, running: Running) -> None:
        """The first word; no other comes before it."""
        try:
            with suppress(OSError):
                await running.write(as_line(self._task.begin()))
        finally:
            self._writing.release()

    async def _tell(self, command: Mapping[str, Any]) -> None:
        """Tell it, if it still hears."""
        with suppress(OSError):
            await self._write(command)

    async def _write(self, command: Mapping[str, Any]) -> None:
        """Raises `BrokenPipeError` if nobody hears it."""
        if self._running is None:
            raise BrokenPipeError
        async with self._writing:
            await self._running.write(as_line(command))

    async def _decide(self, question: str, granted: bool, reason: str | None) -> None:  # noqa: FBT001  # an answer
        await self._tell({"do": "decide", "approval_id": question, "granted": granted, "reason": reason})

    # --- from the driver

    async def _say(self, data: EventData) -> None:
        self._used.count(data)
        await self._around.voice.say(data)

    async def _heed(self, type: str, data: dict[str, Any]) -> None:
        match lines.read_driver_line(type, data):
            case lines.Ready(session_id=session):
                self._session = session
                self._ready.set()
            case lines.Taken() | lines.Refused() as receipt:
                self._receipts.answer(receipt.message, receipt.refusal)
            case lines.Turn(turn=turn, state=state):
                await self._on_turn(turn, working=state == "running")
            case lines.Ask(approval_id=question, tool=tool, input=input, reason=reason):
                await self._desk.ask(question, tool, input, reason, self._turn)
            case lines.TranscriptLine(path=path, session_id=session, keep=now):
                self._transcript = (Path(path), session)
                if now:
                    await self._around.keep(*self._transcript)
            case lines.Result() as result:
                kills = self._memory_kills.new()
                self._conclusion.result(outcome(result, self._session, stopped=self._stopped, memory_kills=kills))

    async def _on_turn(self, turn: int, *, working: bool) -> None:
        # An agent that was interrupted for a message may go on to the next turn without a rest between.
        if not working or (self._interrupted and turn > self._turn):
            self._interrupted = False
            await self._desk.withdraw(self._turn)
        self._turn = turn
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
        except BaseException as error:  # whoever waits for the end hears of it, also of being cancelled
            if not self._done.done():
                self._done.set_exception(error)
            raise
        finally:
            readers.cancel()
            await end_tasks([self._beginning] if self._beginning else [])
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
        if code != 0 and self._transcript is not None:
            await self._around.keep_what_is_left(*self._transcript)
        await self._desk.withdraw(self._turn, _GONE)
        ended = judge(code, stopped=self._stopped, memory_kills=self._memory_kills.new())
        if ended.error_type is None and not self._done.done():
            ended = replace(ended, error_type="internal", error="it ended without saying what came of its task")
        if not self._stopped and ended.error_type is not None:
            await self._around.voice.say(broke_off(ended, self._turn, len(self._output.tail)))
        self._conclusion.close()
        if self._done.done() and not self._stopped:
            self._broke = ended if ended.error_type is not None else None
            await self._around.turned(self._turn, False)
        self._conclude(replace(ended, session_id=self._session))
