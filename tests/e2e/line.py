"""The line as a user has it: a stack of its own, the command, and what the history and the host say of it."""

import asyncio
import json
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from sandherd.client import Herd, HerdError
from sandherd.client.context import Context
from tests.patience import PATIENCE
from tests.stored_history import all_stored

ROOT: Final = Path(__file__).parents[2]
SANDHERD: Final = ROOT / ".venv" / "bin" / "sandherd"
HOLD: Final = "touch began; until test -e go; do sleep 0.05; done"
"""What an agent runs until the test lets it go on."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str

    def checked_output(self) -> str:
        """What it printed; it went well."""
        assert self.status == 0, self.out + self.err
        return self.out.strip()

    def document(self) -> Any:
        """The same, of `-o json`."""
        return json.loads(self.checked_output())


@dataclass
class Line:
    """A stack in `home`, which has its toolchains in `home/toolchains`."""

    home: Path
    program: Path = SANDHERD
    _left: list[Process] = field(default_factory=list)

    async def start(self, *words: str) -> Process:
        """Begin a command; what is left of it when the test is over is ended."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
        command = [str(self.program), "--home", str(self.home), *words]
        process = await asyncio.create_subprocess_exec(*command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        self._left.append(process)
        return process

    async def ended(self, process: Process) -> Done:
        """Wait for its end."""
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        return Done(process.returncode or 0, out.decode(), err.decode())

    async def __call__(self, *words: str) -> Done:
        """Run a command to its end."""
        return await self.ended(await self.start(*words))

    async def leave(self) -> None:
        """End the commands that still run."""
        for process in self._left:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()
        self._left.clear()

    @asynccontextmanager
    async def given(self, *words: str) -> AsyncIterator["Given"]:
        """A task, given by `run --no-follow`; called off at the end, should it run then."""
        task = (await self("run", "--no-follow", *words)).checked_output()
        async with Herd.connect(Context.resolve(home=self.home)) as herd:
            given = Given(task, self, herd)
            try:
                yield given
            finally:
                await given.over()


@dataclass
class Given:
    """A task, what is stored of it, and its sandbox on this host."""

    task: str
    line: Line
    herd: Herd
    _seen: set[psutil.Process] = field(default_factory=set)

    async def events(self, *types: str) -> list[Event]:
        """What was published of it until now, of these types."""
        await all_stored(self.herd)
        return await self.stored(*types)

    async def stored(self, *types: str) -> list[Event]:
        """What is stored of it, of these types."""
        stored = [event.envelope async for event in self.herd.events(task=self.task)]
        return [event for event in stored if not types or event["type"] in types]

    async def sessions(self) -> set[str]:
        """The names under which a transcript was saved. What the terminal showed is saved, too, and is no session's."""
        return {event["data"].get("session_id") for event in await self.events("agent.transcript_saved")}

    async def event(self, type: str, count: int = 1, **data: Any) -> Event:
        """Wait until the `count`th event of this type is stored that has these values."""
        found: list[Event] = []

        async def stored() -> bool:
            found[:] = [event for event in await self.stored(type) if data.items() <= event["data"].items()]
            return len(found) >= count

        await self.until(stored, f"{type} {data or ''} was not published {count} times")
        return found[count - 1]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until this holds. Until the spawner has read the task, the herd does not know it."""

        async def holds() -> bool:
            with suppress(HerdError):
                found = condition()
                return bool(await found if asyncio.iscoroutine(found) else found)
            return False

        try:
            async with asyncio.timeout(PATIENCE):
                while not await holds():
                    await asyncio.sleep(0.05)
        except TimeoutError:
            listing = "\n".join(f"{event['type']} {json.dumps(event['data'])[:300]}" for event in await self.stored())
            raise AssertionError(f"{what}\n{listing}") from None

    async def sandbox(self) -> str:
        """Where it runs."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(HerdError):  # it is unknown until the spawner has read it
                    if (sandbox := (await self.herd.task(self.task)).sandbox) is not None:
                        return sandbox
                await asyncio.sleep(0.05)

    async def work(self) -> Path:
        """Its work tree on this host, while the sandbox is there."""
        return self.line.home / "sandboxes" / await self.sandbox() / "work"

    async def appears(self, name: str) -> Path:
        """Wait for a file in its work tree; what runs in the sandbox then has to be removed when that is."""
        path = await self.work() / name
        await self.until(path.exists, f"{name} is not there")
        self._seen |= set(await self.processes())
        return path

    async def processes(self) -> list[psutil.Process]:
        """Everything that runs in the sandbox, however far it has gone: all are below the shim on the host."""
        sandbox = await self.sandbox()
        shims = [one for one in psutil.process_iter() if _is_shim(one, str(self.line.home / "sandboxes" / sandbox))]
        return [below for shim in shims for below in shim.children(recursive=True)]

    async def program(self, name: str) -> psutil.Process:
        """The one process of that name in the sandbox; others come and go meanwhile."""
        found = []
        for process in await self.processes():
            with suppress(psutil.NoSuchProcess):
                found += [process] if process.name() == name else []
        (program,) = found
        return program

    async def send(self, text: str, *options: str) -> dict[str, Any]:
        """Say something to the agent, and wait for the receipt."""
        answer: dict[str, Any] = (
            await self.line("send", await self.sandbox(), text, *options, "-o", "json")
        ).document()
        return answer

    async def requested(self, tool: str) -> Event:
        """Wait until the agent asks leave for this, and return what `approvals list` shows of it."""
        shown: list[Event] = []

        async def listed() -> bool:
            sandbox = await self.sandbox()
            document = (await self.line("approvals", "list", "--sandbox", sandbox, "-o", "json")).document()
            shown[:] = [view for view in document["approvals"] if view["tool"] == tool]
            return bool(shown)

        await self.event("agent.approval_requested", tool=tool)
        await self.until(listed, f"no approval is requested for {tool}")
        return shown[0]

    async def gone(self) -> None:
        """Wait until the sandbox has ended and its last word is stored: nothing is missing, and nothing runs on."""
        sandbox = await self.sandbox()

        async def settled() -> bool:
            audit = await self.herd.audit(sandbox)
            ended = (await self.herd.sandbox(sandbox)).state == "terminated"
            return ended and not audit.unstored and all(source.closed for source in audit.sources)

        await self.until(settled, "the sandbox has not ended")
        assert (await self.herd.audit(sandbox)).missing == 0
        assert self._seen, "nothing ran"
        await self.until(lambda: not any(map(_runs, self._seen)), "something of it runs on")

    async def over(self) -> None:
        """Call it off if it runs, and let its sandbox go."""
        if (await self.herd.task(self.task)).ended_at is None:
            await self.herd.cancel(self.task)
        elif (await self.herd.sandbox(await self.sandbox())).state == "running":
            await self.line("sandboxes", "terminate", await self.sandbox())


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_shim(process: psutil.Process, place: str) -> bool:
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    return "sandherd-sandbox" in words and any(word.startswith(f"{place}/") for word in words)
