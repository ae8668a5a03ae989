"""Runs a command in a sandbox: starts it once, reads its output to the end, or ends it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final, Literal

from sandherd.client.argument_lists import argument_list
from sandherd.client.errors import HerdError, validated
from sandherd.client.events.protocols import HerdConnection
from sandherd.client.retry import ProgressCheck, request_with_retries
from sandherd.contracts.errors import Code
from sandherd.contracts.names import new_name
from sandherd.contracts.requests import (
    INLINE_BYTES,
    Exec,
    ExecInput,
    ExecKill,
    ExecOutput,
    ExecState,
    ExecStatus,
    TerminalSize,
)

Signal = Literal["TERM", "INT", "KILL"]
ENDING_SECONDS: Final = 120.0
"""Seconds after the time limit of a command in which the sandbox may still report that it runs."""
DEFAULT_TIMEOUT: Final = 86_400.0
"""How long to wait for a command whose time limit is unknown, in seconds."""
READ_SECONDS: Final = 60.0
"""Time limit for reading what a command has written so far, in seconds."""
START_PATIENCE: Final = 5.0
"""How long a request to an unavailable sandbox is retried, in seconds, because the sandbox may be reconnecting."""


def command(  # one parameter per field
    sandbox: str,
    argv: Sequence[str],
    *,
    cwd: str = ".",
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    timeout: int = 600,
    terminal: TerminalSize | None = None,
) -> Exec:
    """The request that starts a command in a sandbox. Raises `HerdError` with the invalid field."""
    arguments = argument_list(argv)
    if not arguments:
        raise HerdError.of(
            Code.INVALID_FIELD,
            "no command is given",
            field="command",
            remedy="write it after the sandbox's name, as in `ls -l`",
        )
    if stdin is not None and len(stdin) > INLINE_BYTES:
        raise HerdError.of(
            Code.TOO_LARGE,
            f"stdin: {len(stdin)} bytes; the maximum is {INLINE_BYTES}",
            field="stdin",
            remedy="copy it into the sandbox with `sandherd cp`, and let the command read the file",
        )
    return validated(
        Exec,
        sandbox=sandbox,
        exec=new_name("exc"),
        command=arguments,
        cwd=cwd,
        env=dict(env or {}),
        stdin=stdin,
        timeout_seconds=timeout,
        wait_seconds=0,
        terminal=terminal,
    )


class Execution:
    """A running or ended command in a sandbox. Iterate over `output()` for its output until its end."""

    def __init__(
        self,
        link: HerdConnection,
        sandbox: str,
        name: str,
        total_seconds: float = DEFAULT_TIMEOUT,
        *,
        offset: int = 0,
    ) -> None:
        """`offset` is the number of bytes at the beginning of the output that are not returned.

        `total_seconds` is the maximum time to wait for the command's end.
        """
        self.sandbox = sandbox
        """The sandbox in which the command runs."""
        self.name = name
        """The name of the command, `exc-…`."""
        self.state: ExecState | None = None
        """The state of the command at the last request; None before the first."""
        self._link = link
        self._total_seconds = total_seconds
        self._offset = offset
        self._unread_output: list[ExecOutput] = []

    @classmethod
    async def start(cls, link: HerdConnection, request: Exec) -> "Execution":
        """Start a command. Raises `HerdError` if the sandbox does not exist or has ended, or if its worker refuses."""
        execution = cls(link, request.sandbox, request.exec, request.timeout_seconds + ENDING_SECONDS)
        try:
            execution._update(await request_with_retries(link, request, patience=START_PATIENCE))
        except asyncio.CancelledError:
            # The command may already run, and its caller does not get its name.
            await execution.kill("KILL")
            raise
        return execution

    async def output(self) -> AsyncIterator[ExecOutput]:
        """The output of the command, in order, until it has ended and all stored output was returned.

        Raises `HerdError` (`refused`) if the command is still reported as running after its time limit.
        """
        progress = ProgressCheck(self._total_seconds, total_seconds=self._total_seconds)
        while True:
            ready, self._unread_output = self._unread_output, []
            for piece in ready:
                yield piece
            if self._is_complete():
                return
            previous_offset = self._offset
            await self.poll()
            if not self._unread_output and not self._is_complete():
                await progress.report(self._offset - previous_offset)
            progress.check()

    async def wait(self) -> ExecState:
        """Wait until the command has ended. Returns its final state, with all output that `output` has not returned.

        Raises `HerdError` as `output` does; `exit_status` gives the status as in a shell.
        """
        pieces = [piece async for piece in self.output()]
        assert self.state is not None  # `output` has requested it
        return self.state.model_copy(update={"output": pieces})

    async def poll(self, *, wait: float = 5.0) -> ExecState:
        """The state of the command, after at most `wait` seconds. `output` returns its output."""
        request = ExecStatus(sandbox=self.sandbox, exec=self.name, offset=self._offset, wait_seconds=wait)
        return self._update(await request_with_retries(self._link, request))

    async def now(self) -> AsyncIterator[ExecOutput]:
        """The output of the command so far."""
        previous_offset = -1
        progress = ProgressCheck(READ_SECONDS, total_seconds=READ_SECONDS)
        while previous_offset < self._offset and not self._is_complete():
            previous_offset = self._offset
            await self.poll(wait=0)
            progress.check()
            ready, self._unread_output = self._unread_output, []
            for piece in ready:
                yield piece

    async def kill(self, signal: Signal = "TERM") -> ExecState:
        """Send a signal to the command and all processes that it has started."""
        state: ExecState = await request_with_retries(
            self._link, ExecKill(sandbox=self.sandbox, exec=self.name, signal=signal), patience=START_PATIENCE
        )
        return state

    async def write(self, data: bytes, *, offset: int, size: TerminalSize | None = None) -> int:
        """Write to the command's terminal, or resize it. Returns the total of accepted bytes, the next `offset`.

        If the total is less than `offset + len(data)`, send the rest again. Raises `HerdError` (`conflict`) if the
        command has ended or has no terminal.
        """
        request = ExecInput(sandbox=self.sandbox, exec=self.name, offset=offset, data=data, size=size)
        reply = await request_with_retries(self._link, request)
        return min(int(reply.accepted), offset + len(data))

    async def end(self, grace: float = 2.0) -> None:
        """End the command with SIGINT, and with SIGKILL if it has not ended after `grace` seconds."""
        await self.kill("INT")
        try:
            async with asyncio.timeout(grace):
                async for _ in self.output():
                    pass
        except TimeoutError:
            await self.kill("KILL")

    def _is_complete(self) -> bool:
        return self.state is not None and self.state.complete

    def _update(self, state: ExecState) -> ExecState:
        self.state = state
        self._unread_output += state.output
        self._offset = max(self._offset, state.next_offset)
        return state


def exit_status(state: ExecState) -> int:
    """The exit status of a command as in a shell.

    It is the command's own status, 128 plus the signal, 124 if it timed out, or 126 if it could not be started.
    """
    if state.state == "timed_out":
        return 124
    if state.state == "failed":
        return 126
    if state.exit_code is not None:
        return state.exit_code
    return 128 + state.signal if state.signal is not None else 1
