"""Runs a command in a sandbox with a terminal. This terminal, in raw mode, shows its output and sends it the input."""

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

DEFAULT_TIMEOUT_SECONDS: Final = 86_400
"""The default time limit of a command with a terminal."""
_DEFAULT_TERM: Final = "xterm-256color"
_RETRY_SECONDS: Final = 0.1
"""The delay, in seconds, before input that the command did not accept is sent again."""


def run(sandbox: str, argv: Sequence[str], *, cwd: str, env: Sequence[str], timeout: str | None) -> Work:
    """A function that runs a command in this terminal. Without a terminal, this raises `HerdError`."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise HerdError.of(
            Code.INVALID_FIELD,
            "standard input and output are not a terminal here",
            field="tty",
            remedy="leave -t out; -i passes standard input to the command",
        )
    limit = DEFAULT_TIMEOUT_SECONDS if timeout is None else seconds(timeout, "--timeout")
    options: Any = {"cwd": cwd, "timeout": limit}
    options["env"] = {"TERM": os.environ.get("TERM", _DEFAULT_TERM), **variables(env, os.environ)}
    command(sandbox, argv, **options)

    async def work(herd: Herd) -> int:
        name = await sandbox_of(herd, sandbox)
        execution = await herd.exec(name, argv, terminal=_terminal_size(), **options)
        try:
            with _raw_mode(sys.stdin.fileno()):
                await _connect_terminal(execution)
        except asyncio.CancelledError:
            await execution.kill("KILL")
            raise
        return _show_end(execution)

    return work


async def _connect_terminal(execution: Execution) -> None:
    """Show the output of a command and send it the typed input, until it ends."""
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


def _show_end(execution: Execution) -> int:
    """Print the error of a command that has ended, if it has one. Returns its exit status."""
    assert execution.state is not None
    if execution.state.error:
        print_error(f"{execution.name}: {execution.state.error}")
    return exit_status(execution.state)


class Keyboard:
    """The typed input that the command has not accepted yet, and the terminal's size if it has changed."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._typed = bytearray()
        self._size: TerminalSize | None = None
        self._accepted = 0
        self._changed = asyncio.Event()

    @contextmanager
    def read(self, descriptor: int) -> Iterator[None]:
        """Collect typed input and changes of the terminal's size while the context is open."""
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, self._read_input, descriptor)
        loop.add_signal_handler(signal.SIGWINCH, self._resize)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
            loop.remove_signal_handler(signal.SIGWINCH)

    async def send(self) -> None:
        """Send the input, in order, until cancelled or the command has ended."""
        with suppress(HerdError):  # then the output also ends, and raises the error of a lost connection
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
                await asyncio.sleep(_RETRY_SECONDS)
            self._accepted = accepted

    def _read_input(self, descriptor: int) -> None:
        data = os.read(descriptor, INPUT_BYTES)
        if not data:  # the terminal is gone
            asyncio.get_running_loop().remove_reader(descriptor)
        self._typed += data
        self._changed.set()

    def _resize(self) -> None:
        self._size = _terminal_size()
        self._changed.set()


def _terminal_size() -> TerminalSize:
    size = shutil.get_terminal_size()
    return TerminalSize(rows=max(1, size.lines), columns=max(1, size.columns))


@contextmanager
def _raw_mode(descriptor: int) -> Iterator[None]:
    """A context in which every key of the terminal is input, also Ctrl-C. It restores the terminal's mode."""
    mode = termios.tcgetattr(descriptor)
    try:
        tty.setraw(descriptor)
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, mode)
