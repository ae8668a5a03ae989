"""The whole product as a user has it: a stack, the command, and the state in the history and on the host."""

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
"""A script of an agent that waits until the test lets it continue."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Done:
    """The status and the output of a command."""

    status: int
    out: str
    err: str

    def checked_output(self) -> str:
        """The output of a command that must have succeeded."""
        assert self.status == 0, self.out + self.err
        return self.out.strip()

    def document(self) -> Any:
        """The document of a command with `-o json` that must have succeeded."""
        return json.loads(self.checked_output())


@dataclass
class Line:
    """A stack in `home`, which has its toolchains in `home/toolchains`."""

    home: Path
    program: Path = SANDHERD
    _left: list[Process] = field(default_factory=list)

    async def start(self, *words: str) -> Process:
        """Start a command; if it still runs after the test, it is ended."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("SANDHERD_")}
        command = [str(self.program), "--home", str(self.home), *words]
        process = await asyncio.create_subprocess_exec(*command, env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
        self._left.append(process)
        return process

    async def ended(self, process: Process) -> Done:
        """Wait for the end of a command."""
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
        """Submit a task by `run --no-follow`; it is cancelled at the end if it still runs."""
        task = (await self("run", "--no-follow", *words)).checked_output()
        async with Herd.connect(Context.resolve(home=self.home)) as herd:
            given = Given(task, self, herd)
            try:
                yield given
            finally:
                await given.over()


@dataclass
class Given:
    """A task, its stored events, and its sandbox on this host."""

    task: str
    line: Line
    herd: Herd
    _seen: set[psutil.Process] = field(default_factory=set)

    async def events(self, *types: str) -> list[Event]:
        """The events of the task published so far, of these types."""
        await all_stored(self.herd)
        return await self.stored(*types)

    async def stored(self, *types: str) -> list[Event]:
        """The stored events of the task, of these types."""
        stored = [event.envelope async for event in self.herd.events(task=self.task)]
        return [event for event in stored if not types or event["type"] in types]

    async def sessions(self) -> set[str]:
        """The session names of stored transcripts. The terminal output is stored, too, without a session."""
        return {event["data"].get("session_id") for event in await self.events("agent.transcript_saved")}

    async def event(self, type: str, count: int = 1, **data: Any) -> Event:
        """Wait until the `count`th event of this type with these values is stored."""
        found: list[Event] = []

        async def stored() -> bool:
            found[:] = [event for event in await self.stored(type) if data.items() <= event["data"].items()]
            return len(found) >= count

        await self.until(stored, f"{type} {data or ''} was not published {count} times")
        return found[count - 1]

    async def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait until the condition holds. Until the spawner has read the task, the herd does not know it."""

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
        """The sandbox of the task."""
        async with asyncio.timeout(PATIENCE):
            while True:
                with suppress(HerdError):  # it is unknown until the spawner has read it
                    if (sandbox := (await self.herd.task(self.task)).sandbox) is not None:
                        return sandbox
                await asyncio.sleep(0.05)

    async def work(self) -> Path:
        """The task's work tree on this host, while the sandbox exists."""
        return self.line.home / "sandboxes" / await self.sandbox() / "work"

    async def appears(self, name: str) -> Path:
        """Wait for a file in the work tree."""
        path = await self.work() / name
        await self.until(path.exists, f"{name} is not there")
        self._seen |= set(await self.processes())
        return path

    async def processes(self) -> list[psutil.Process]:
        """All processes in the sandbox, also those in their own sessions: all are below the shim on the host."""
        sandbox = await self.sandbox()
        shims = [one for one in psutil.process_iter() if _is_shim(one, str(self.line.home / "sandboxes" / sandbox))]
        return [below for shim in shims for below in shim.children(recursive=True)]

    async def program(self, name: str) -> psutil.Process:
        """The only process of that name in the sandbox; others start and end at any time."""
        found = []
        for process in await self.processes():
            with suppress(psutil.NoSuchProcess):
                found += [process] if process.name() == name else []
        (program,) = found
        return program

    async def send(self, text: str, *options: str) -> dict[str, Any]:
        """Send a message to the agent, and wait for the receipt."""
        answer: dict[str, Any] = (
            await self.line("send", await self.sandbox(), text, *options, "-o", "json")
        ).document()
        return answer

    async def requested(self, tool: str) -> Event:
        """Wait until the agent requests this approval; returns it as `approvals list` shows it."""
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
        """Wait until the sandbox has ended and its last event is stored: nothing is missing, and no process runs."""
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
        """Cancel the task if it runs, and end its sandbox."""
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
