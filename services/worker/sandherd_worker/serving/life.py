"""One life of the server's program: it is started, asked for its health, and ended with all that it has started."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM
from typing import Final

from sandherd_worker.access.launching import Launch, Launched, launch
from sandherd_worker.families import Families
from sandherd_worker.processes import Reaper, end, send
from sandherd_worker.serving.asking import free_port, well
from sandherd_worker.tasks import end_tasks, first_of

FAMILY: Final = "agent-server"
"""Its processes are a family of their own: neither the agent's nor a command's."""
_LEFTOVER_GRACE: Final = 0.5
_LAST_WORDS: Final = 5


@dataclass(frozen=True, kw_only=True)
class Pace:
    """In seconds, but `misses`: so often it may give no answer in a row."""

    start: float = 120.0
    look: float = 0.1
    """Between two questions while it starts."""
    between: float = 5.0
    """The same while it is well."""
    answer: float = 3.0
    misses: int = 3
    grace: float = 3.0
    """How long it has to end in order."""
    rest: float = 1.0
    """Before it is started again."""


@dataclass(frozen=True, kw_only=True)
class What:
    """What is run: made anew for each start's port."""

    argv: Callable[[int], Sequence[str]]
    environment: Callable[[], dict[str, str]]
    folder: Path
    health: str = "/health"
    listen: str = "127.0.0.1"
    """Where it is to listen."""
    ports: Sequence[int] = ()
    """The only ports at which it is reached; none: any."""


@dataclass(frozen=True)
class Ended:
    """How it was lost. `code` is its exit status, or minus the signal; None if it ran and gave no answer."""

    error: str
    code: int | None = None


class Life:
    """Of one start, until `stop` is set at the latest. It must not be cancelled: what it has started would be left."""

    def __init__(self, what: What, pace: Pace, reaper: Reaper, families: Families, stop: asyncio.Event) -> None:
        self._what, self._pace, self._reaper, self._families = what, pace, reaper, families
        self._stop = stop
        self._last: deque[str] = deque(maxlen=_LAST_WORDS)
        self.forced = False
        """Whether something of it had to be ended by force."""

    async def live(self, started: Callable[[], Awaitable[None]], ready: Callable[[int], Awaitable[None]]) -> Ended:
        """Run it until it is lost; how that was. `ready(port)` is told once it answers. Nothing of it is left after."""
        try:
            port = free_port(self._what.listen, self._what.ports)
            launched = await launch(self._launch(port), self._reaper)
        except (OSError, ValueError) as error:
            return Ended(f"it could not be started: {error}")
        self._families.enter(FAMILY, launched.leader)
        listening = [asyncio.create_task(self._listen(pipe)) for pipe in (launched.stdout, launched.stderr)]
        try:
            await started()
            return await self._watch(launched, port, ready)
        finally:
            await self._end(launched)
            await end_tasks(listening)
            launched.close()
            self._families.leave(FAMILY)

    def _launch(self, port: int) -> Launch:
        return Launch(
            argv=self._what.argv(port), environment=self._what.environment(), folder=self._what.folder, stdin=None
        )

    async def _watch(self, launched: Launched, port: int, ready: Callable[[int], Awaitable[None]]) -> Ended:
        answers = asyncio.Event()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pace.start):
                await first_of(_ended(launched), self._stop.wait(), self._until_well(port, answers))
        if not (answers.is_set() or launched.exit.done() or self._stop.is_set()):
            return Ended(f"it gave no answer within {self._pace.start:g} s{self._words}")
        if answers.is_set():
            await ready(port)
            await first_of(_ended(launched), self._stop.wait(), self._until_silent(port))
        return self._over(launched) if launched.exit.done() else Ended(f"it gives no answer any more{self._words}")

    def _over(self, launched: Launched) -> Ended:
        code = launched.exit.result()
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return Ended(f"it has ended ({how}){self._words}", code)

    async def _until_well(self, port: int, answers: asyncio.Event) -> None:
        path, wait = self._what.health, self._pace.answer
        while not await well(port, path, wait):  # noqa: ASYNC110  # another program: nothing here is told of it
            await asyncio.sleep(self._pace.look)
        answers.set()

    async def _until_silent(self, port: int) -> None:
        missed = 0
        while missed < self._pace.misses:
            await asyncio.sleep(self._pace.between if missed == 0 else self._pace.look)
            missed = 0 if await well(port, self._what.health, self._pace.answer) else missed + 1

    async def _end(self, launched: Launched) -> None:
        """The program first, which ends in order what it has started; then whatever it has left."""
        if not launched.exit.done():
            send([launched.leader], SIGTERM)
            await asyncio.wait([launched.exit], timeout=self._pace.grace)
        left = self._mine()
        self.forced = bool(left)
        await end(self._mine, _LEFTOVER_GRACE)

    def _mine(self) -> set[int]:
        return self._families.of(FAMILY)

    async def _listen(self, pipe: asyncio.StreamReader) -> None:
        """Keep its last words; it must not stall because nobody reads."""
        rest = b""
        while piece := await pipe.read(64 * 1024):
            *lines, rest = (rest + piece)[-8192:].split(b"\n")
            self._last += [line.decode(errors="replace").strip()[:300] for line in lines if line.strip()]

    @property
    def _words(self) -> str:
        return f": {' / '.join(self._last)}" if self._last else ""


async def _ended(launched: Launched) -> None:
    """Return when the program has ended; the future itself must not be cancelled."""
    await asyncio.wait([launched.exit])
