"""Runs a command in a sandbox with a terminal: this terminal in raw mode shows its output and types its input."""

import asyncio
import codecs
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from sandherd.cli.herd_session import Work
from sandherd.cli.name_prefixes import sandbox_of
from sandherd.cli.parse.task_spec import variables
from sandherd.cli.parse.units import seconds
from sandherd.cli.stderr import print_error
from sandherd.client.errors import HerdError
from sandherd.client.herd import Herd
from sandherd.client.sandboxes.execution import Execution, command, exit_status
from sandherd.client.screen_output import RESTORE, ScreenFilter
from sandherd.client.terminal_text import write_screen
from sandherd.concurrency import cancel_and_wait
from sandherd.contracts.errors import Code
from sandherd.contracts.requests import INPUT_BYTES, TerminalSize

LONGEST_SECONDS: Final = 86_400
"""The time limit of a command with a terminal, if none is given."""
_TERM: Final = "xterm-256color"
_REST: Final = 0.1
"""How long to wait before input is sent again that the command did not accept, in seconds."""


def run(sandbox: str, argv: Sequence[str], *, cwd: str, env: Sequence[str], timeout: str | None) -> Work:
    """The work of running it. Raises `HerdError` if there is no terminal here, or the command is invalid."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "standard input and output are no terminal here",
            field="tty",
            remedy="leave -t out; -i passes standard input to the command",
        )
    limit = LONGEST_SECONDS if timeout is None else seconds(timeout, "--timeout")
    options: Any = {"cwd": cwd, "timeout": limit}
    options["env"] = {"TERM": os.environ.get("TERM", _TERM), **variables(env, os.environ)}
    command(sandbox, argv, **options)

    async def work(herd: Herd) -> int:
        name = await sandbox_of(herd, sandbox)
        execution = await herd.exec(name, argv, terminal=_size(), **options)
        try:
            with _raw(sys.stdin.fileno()):
                await _attend(execution)
        except asyncio.CancelledError:
            await execution.kill("KILL")
            raise
        return _result(execution)

    return work


async def _attend(execution: Execution) -> None:
    """Show its output and send its input until it ends."""
    keyboard = Keyboard(execution)
    typing = asyncio.create_task(keyboard.send())
    screen, decoder = ScreenFilter(), codecs.getincrementaldecoder("utf-8")("replace")
    try:
        with keyboard.read(sys.stdin.fileno()):
            async for piece in execution.output():
                write_screen(screen.feed(decoder.decode(piece.data)))
    finally:
        await cancel_and_wait([typing])
        write_screen(RESTORE)


def _result(execution: Execution) -> int:
    assert execution.state is not None
    if execution.state.error:
        print_error(f"{execution.name}: {execution.state.error}")
    return exit_status(execution.state)


class Keyboard:
    """The input that was typed here and not yet accepted there, and the terminal's size if it has changed."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._typed = bytearray()
        self._size: TerminalSize | None = None
        self._accepted = 0
        self._changed = asyncio.Event()

    @contextmanager
    def read(self, descriptor: int) -> Iterator[None]:
        """Take what is typed and each change of the size."""
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._take, descriptor)
        loop.add_signal_handler(signal.SIGWINCH, self._resize)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
            loop.remove_signal_handler(signal.SIGWINCH)

    async def send(self) -> None:
        """Send it, in order. Ends when the command has ended; its output then ends, too."""
        with suppress(HerdError):  # without a connection the output ends with the error
            while True:
                await self._changed.wait()
                self._changed.clear()
                await self._send_all()

    async def _send_all(self) -> None:
        while self._typed or self._size:
            data, size, self._size = bytes(self._typed[:INPUT_BYTES]), self._size, None
            accepted = await self._execution.write(data, offset=self._accepted, size=size)
            del self._typed[: accepted - self._accepted]
            if accepted < self._accepted + len(data):
                await asyncio.sleep(_REST)
            self._accepted = accepted

    def _take(self, descriptor: int) -> None:
        data = os.read(descriptor, INPUT_BYTES)
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(descriptor)
        self._typed += data
        self._changed.set()

    def _resize(self) -> None:
        self._size = _size()
        self._changed.set()


def _size() -> TerminalSize:
    found = shutil.get_terminal_size()
    return TerminalSize(rows=max(1, found.lines), columns=max(1, found.columns))


@contextmanager
def _raw(descriptor: int) -> Iterator[None]:
    """The terminal passes every key on, also Ctrl-C; afterwards it is as before."""
    before = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
