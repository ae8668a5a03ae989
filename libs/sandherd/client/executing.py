"""A command in a sandbox: started once, its output read to the end, ended when it is no longer wanted."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Literal

from sandherd.client.errors import HerdError, made
from sandherd.client.link import Link
from sandherd.client.persisting import Progress, persist
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import INLINE_BYTES, Exec, ExecKill, ExecOutput, ExecState, ExecStatus

Signal = Literal["TERM", "INT", "KILL"]
ENDING: Final = 120.0
"""How long after its time a command may still be said to run, in seconds."""
LONGEST: Final = 86_400.0
"""How long a command is looked at whose time is not known, in seconds."""
NOW: Final = 60.0
"""How long it may take to give what a command has written so far, in seconds."""
START_PATIENCE: Final = 5.0
"""How long a sandbox that does not answer is asked to start a command: it may just be finding back to its broker."""


def command(  # one parameter per field
    sandbox: str,
    argv: Sequence[str],
    *,
    cwd: str = ".",
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: int = 600,
) -> Exec:
    """A command for a sandbox. Raises `HerdError` naming the field that is wrong, before anything is sent."""
    if not argv:
        raise HerdError.of(
            Code.INVALID_FIELD, "no command is named", field="command", remedy="put it after --, as in `-- ls -l`"
        )
    if stdin is not None and len(stdin) > INLINE_BYTES:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"stdin: {len(stdin)} bytes; at most {INLINE_BYTES} are taken",
            field="stdin",
            remedy="copy it there with `sandherd cp`, and let the command read the file",
        )
    return made(
        Exec,
        sandbox=sandbox,
        exec=new_name("exc"),
        command=list(argv),
        cwd=cwd,
        env=dict(env or {}),
        stdin=stdin,
        timeout_seconds=timeout,
        wait_seconds=0,
    )


class Execution:
    """A command that runs, or ran. Iterate over it for its output, piece by piece, to its end."""

    def __init__(self, link: Link, sandbox: str, name: str, longest: float = LONGEST) -> None:
        self.sandbox = sandbox
        self.name = name
        self.state: ExecState | None = None
        """How it stood when it was last asked for."""
        self._link = link
        self._longest = longest
        self._offset = 0
        self._read: list[ExecOutput] = []

    @classmethod
    async def start(cls, link: Link, asked: Exec) -> "Execution":
        """Start it. Raises `HerdError`: no such sandbox, one that has ended, or whatever its worker refuses."""
        found = cls(link, asked.sandbox, asked.exec, asked.timeout_seconds + ENDING)
        try:
            found._take(await persist(link, asked, patience=START_PATIENCE))
        except asyncio.CancelledError:
            # Nobody would know of it, and it may run already.
            await found.kill("KILL")
            raise
        return found

    async def output(self) -> AsyncIterator[ExecOutput]:
        """Its output, in order, until it has ended and all stored output was returned.

        Raises `HerdError` (`refused`) if the sandbox's answers don't come to an end in its time.
        """
        progress = Progress(self._longest, longest=self._longest)
        while True:
            ready, self._read = self._read, []
            for piece in ready:
                yield piece
            if self._is_complete():
                return
            before = self._offset
            await self.look()
            if not self._read and not self._is_complete():
                await progress.made(self._offset - before)
            progress.check()

    async def look(self, *, wait: float = 5.0) -> ExecState:
        """How it stands now, after `wait` seconds at the most. What it wrote is given by `output`."""
        request = ExecStatus(sandbox=self.sandbox, exec=self.name, offset=self._offset, wait_seconds=wait)
        return self._take(await persist(self._link, request))

    async def now(self) -> AsyncIterator[ExecOutput]:
        """What it has written so far."""
        before = -1
        progress = Progress(NOW, longest=NOW)
        while before < self._offset and not self._is_complete():
            before = self._offset
            await self.look(wait=0)
            progress.check()
            ready, self._read = self._read, []
            for piece in ready:
                yield piece

    async def kill(self, signal: Signal = "TERM") -> ExecState:
        """Send a signal to it and all that it has started."""
        found: ExecState = await persist(
            self._link, ExecKill(sandbox=self.sandbox, exec=self.name, signal=signal), patience=START_PATIENCE
        )
        return found

    async def end(self, grace: float = 2.0) -> None:
        """End it: as Ctrl-C would, and for good if it has not ended after `grace` seconds."""
        await self.kill("INT")
        try:
            async with asyncio.timeout(grace):
                async for _ in self.output():
                    pass
        except TimeoutError:
            await self.kill("KILL")

    def _is_complete(self) -> bool:
        return self.state is not None and self.state.complete

    def _take(self, found: ExecState) -> ExecState:
        self.state = found
        self._read += found.output
        self._offset = max(self._offset, found.next_offset)
        return found


def exit_status(state: ExecState) -> int:
    """What a shell would say of it: its own status, 128 and the signal, 124 for a time limit, 126 if it never began."""
    if state.state == "timed_out":
        return 124
    if state.state == "failed":
        return 126
    if state.exit_code is not None:
        return state.exit_code
    return 128 + state.signal if state.signal is not None else 1
