"""One command that somebody runs in the sandbox: from its start until nothing of it is left."""

import asyncio
import os
from contextlib import suppress
from datetime import datetime
from signal import Signals
from typing import Final, Literal

from sandherd.contracts.requests.access import ExecFields, ExecState
from sandherd_worker.access.launching import Launch, Launched, launch
from sandherd_worker.access.log import Log, Stream
from sandherd_worker.emitter import now
from sandherd_worker.families import Families
from sandherd_worker.harnesses.cutting import Allowance
from sandherd_worker.harnesses.output import Output, Pace
from sandherd_worker.processes import Reaper, end, send
from sandherd_worker.redaction import Redactor
from sandherd_worker.tasks import end_tasks

State = Literal["running", "exited", "killed", "timed_out", "failed"]

_LEFTOVER_GRACE: Final = 0.5
"""How long what the command started may go on after it, in seconds."""
_TIMEOUT_GRACE: Final = 2.0
"""How long a command whose time is up has between SIGTERM and SIGKILL."""
_LAST_OUTPUT: Final = 2.0
"""How long its pipes are read when all its processes are gone: one that escaped may hold them for ever."""
_RATE: Final = 256.0 * 1024 * 1024


class Command:
    """Runs once. What it writes is kept without the secrets that are known here."""

    def __init__(self, asked: ExecFields, log: Log, families: Families) -> None:
        self.asked = asked
        self.log = log
        self.state: State = "running"
        self.error: str | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.started_at: datetime = now()
        self.ended_at: datetime | None = None
        self._families = families
        self._late = False
        self._launched = False
        self._waiting: list[Signals] = []
        """Signals that came before there was a process."""
        self._changed = asyncio.Event()

    @property
    def ended(self) -> bool:
        """Whether it is over, with all it started."""
        return self.ended_at is not None

    def status(self, offset: int) -> ExecState:
        """As it stands, with its output from `offset` on. Raises `OSError`."""
        output = self.log.read(offset)
        reached = offset + sum(len(piece.data) for piece in output)
        return ExecState(
            exec=self.asked.exec,
            state=self.state,
            exit_code=self.exit_code,
            signal=self.signal,
            error=self.error,
            output=output,
            next_offset=reached,
            complete=self.ended and reached >= self.log.size,
            dropped_bytes=self.log.dropped,
            started_at=self.started_at,
            ended_at=self.ended_at,
        )

    async def wait(self, offset: int, seconds: float) -> None:
        """Wait until there is something after `offset`, or it has ended; not longer than so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.ended and self.log.size <= offset:
                    await self._changed.wait()

    async def run(self, what: Launch, reaper: Reaper, redactor: Redactor) -> None:
        """Run it to its end. Never raises for what the command does."""
        try:
            launched = await launch(what, reaper)
        except (OSError, ValueError) as error:
            self._end("failed", error=_not_started(what, error))
            return
        self._families.enter(self.asked.exec, launched.leader)
        self._launched = True
        for signal in self._waiting:
            self.send(signal)
        try:
            await self._attend(launched, redactor)
        finally:
            launched.close()
            self._families.leave(self.asked.exec)
        code = launched.exit.result()
        self._end(_verdict(code, late=self._late), code=code)

    def send(self, what: Signals) -> None:
        """A signal to all of its processes."""
        if not self._launched:
            self._waiting.append(what)
        elif not self.ended:
            send(self._mine(), what)

    async def stop(self, grace: float) -> None:
        """End all of its processes, by force after so many seconds."""
        await end(self._mine, grace)

    def fail(self, error: str) -> None:
        """It is not started at all."""
        self._end("failed", error=error)

    def _mine(self) -> set[int]:
        return self._families.of(self.asked.exec)

    async def _attend(self, launched: Launched, redactor: Redactor) -> None:
        reading = asyncio.gather(
            self._reader("stdout", redactor).read(launched.stdout),
            self._reader("stderr", redactor).read(launched.stderr),
        )
        watching = asyncio.create_task(self._watch_the_clock())
        try:
            await launched.exit
            await self.stop(_LEFTOVER_GRACE)
            await asyncio.wait([reading], timeout=_LAST_OUTPUT)
        finally:
            await end_tasks([watching, reading])

    def _reader(self, stream: Stream, redactor: Redactor) -> Output:
        async def keep(text: str) -> None:
            self.log.add(stream, text.encode("utf-8", "surrogateescape"))
            self._tell()

        return Output(redactor, keep, Pace(_RATE, _RATE), together=0.0, allowance=Allowance.unbounded())

    async def _watch_the_clock(self) -> None:
        await asyncio.sleep(self.asked.timeout_seconds)
        self._late = True
        await self.stop(_TIMEOUT_GRACE)

    def _end(self, state: State, *, code: int | None = None, error: str | None = None) -> None:
        self.state, self.error = state, error
        self.exit_code = code if code is not None and code >= 0 else None
        self.signal = -code if code is not None and code < 0 else None
        self.ended_at = now()
        self.log.end()
        self._tell()

    def _tell(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _verdict(code: int, *, late: bool) -> State:
    if late:
        return "timed_out"
    return "killed" if code < 0 else "exited"


def _not_started(what: Launch, error: OSError | ValueError) -> str:
    if isinstance(error, OSError) and error.errno:
        return f"{what.argv[0]}: {os.strerror(error.errno)}"
    return f"{what.argv[0]}: {error}"
