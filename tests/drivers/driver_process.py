"""A driver as its worker has it: a process that reads commands, and writes lines to its events pipe."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.drivers.forked_drivers import ForkedProcess, can_be_forked, start_fork
from tests.patience import PATIENCE

PACKAGES = Path(__file__).parents[2] / "services" / "worker"
_LOOK_AGAIN = 0.5

Line = dict[str, Any]


class DriverProcess:
    """`python -m sandherd_drivers.<kind>`, or any module. `lines` are emitted lines, `output` is what it printed."""

    def __init__(
        self,
        module: str,
        home: Path,
        *,
        python: str | Path = sys.executable,
        packages: Sequence[Path] = (PACKAGES,),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.home = home
        self.work_dir, self.state_dir = home / "work", home / "state"
        self.lines: list[Line] = []
        self.output = ""
        self._module, self._python = module, python
        self._env = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "TMPDIR": tempfile.gettempdir(),
            "PYTHONPATH": os.pathsep.join(map(str, packages)),
            "PYTHONUNBUFFERED": "1",
            "SANDHERD_EVENTS_FD": "3",
            **(env or {}),
        }
        self._process: asyncio.subprocess.Process | ForkedProcess | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._received = asyncio.Event()
        self._messages = 0

    async def start(self) -> None:
        """Start it in its own session; its work tree is `<home>/work`."""
        self.work_dir.mkdir(parents=True, exist_ok=True)
        self.state_dir.mkdir(parents=True, exist_ok=True)
        reading, writing = os.pipe()
        try:
            self._process = await self._start(writing)
        finally:
            os.close(writing)
        events = asyncio.StreamReader(2 * 1024 * 1024)
        protocol = asyncio.StreamReaderProtocol(events)
        await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(reading, "rb"))
        self._readers = [asyncio.create_task(self._read(events)), asyncio.create_task(self._watch())]

    async def _start(self, events: int) -> "asyncio.subprocess.Process | ForkedProcess":
        if can_be_forked(self._module, self._python):
            packages = self._env["PYTHONPATH"]
            return await start_fork(self._module, self._python, packages, self._env, self.work_dir, events)
        return await asyncio.create_subprocess_exec(
            *(str(self._python), "-P", "-m", self._module),
            cwd=self.work_dir,
            env=self._env,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            pass_fds=(3,),
            preexec_fn=lambda: os.dup2(events, 3),
            start_new_session=True,
        )

    @property
    def process(self) -> "asyncio.subprocess.Process | ForkedProcess":
        assert self._process is not None, "it was not started"
        return self._process

    # --- sending

    def send(self, do: str, **fields: Any) -> None:
        """Send a command."""
        self._send({"do": do, **fields})

    def _send(self, *commands: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(command).encode() + b"\n" for command in commands))

    def begin(
        self,
        task: str,
        harness: Mapping[str, Any],
        resume: Mapping[str, Any] | None = None,
        messages: Sequence[str] = (),
    ) -> None:
        """Send the task, and messages with it, so that they come before its end. `harness` is as in a task."""
        begin = {
            "do": "begin",
            "task": task,
            "work_dir": str(self.work_dir),
            "state_dir": str(self.state_dir),
            "harness": dict(harness),
            "resume": None if resume is None else dict(resume),
        }
        self._send(begin, *(self._message(content) for content in messages))

    def message(
        self, content: str, message_type: str = "user_message", sender_id: str | None = None, **fields: Any
    ) -> str:
        """Send a message, and return the message's id."""
        command = {**self._message(content, message_type, sender_id), **fields}
        self._send(command)
        return str(command["message"])

    def _message(
        self, content: str, message_type: str = "user_message", sender_id: str | None = None
    ) -> dict[str, str | None]:
        self._messages += 1
        about = {"message": f"msg-{self._messages}", "message_type": message_type}
        return {"do": "message", **about, "content": content, "sender_id": sender_id}

    def close_input(self) -> None:
        """Close its input, as if the worker had ended."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    # --- receiving

    def emitted(self, type: str) -> list[Line]:
        """The data of every line of this type so far."""
        return [line["data"] for line in self.lines if line["type"] == type]

    async def received(self, type: str, count: int = 1, **data: Any) -> Line:
        """Wait for the `count`th line of this type with these values, and return its data."""

        def found() -> list[Line]:
            return [line for line in self.emitted(type) if data.items() <= line.items()]

        await self.until(lambda: len(found()) >= count, f"{type} {data or ''} was not emitted {count} times")
        return found()[count - 1]

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until the condition holds, which is checked when the driver has emitted or printed something, or ended.

        It is also checked from time to time, as nothing announces what the driver writes to files.
        """
        try:
            async with asyncio.timeout(PATIENCE):
                while not condition():
                    over = all(reader.done() for reader in self._readers)
                    assert not over, f"{what}; it has ended\n{self.report()}"
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._received.wait(), _LOOK_AGAIN)
                    self._received.clear()
        except TimeoutError:
            raise AssertionError(f"{what}\n{self.report()}") from None

    def report(self) -> str:
        """All that it has emitted and printed, for a failure's message."""
        return "\n".join([*(json.dumps(line)[:400] for line in self.lines), "--- output", self.output])

    async def ended(self) -> int:
        """Wait until it has ended and everything it emitted is received; returns its exit status."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*self._readers)
            return await self.process.wait()

    async def stop(self) -> int:
        """Request its stop, and wait; returns its exit status."""
        self.send("stop")
        return await self.ended()

    async def kill(self) -> None:
        """Kill it and its process group; an agent could outlive its driver, and call the next test's model."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, 9)
        await self._process.wait()
        for reader in self._readers:
            reader.cancel()
        await asyncio.gather(*self._readers, return_exceptions=True)
        if isinstance(self._process, ForkedProcess):
            await self._process.close()

    async def _read(self, events: asyncio.StreamReader) -> None:
        while line := await events.readline():
            self.lines.append(json.loads(line))
            self._received.set()
        self._received.set()

    async def _watch(self) -> None:
        assert self.process.stdout is not None
        while printed := await self.process.stdout.read(65536):
            self.output += printed.decode(errors="replace")
            self._received.set()
        self._received.set()
