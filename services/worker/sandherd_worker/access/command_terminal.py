"""The terminal of a command: a pseudo-terminal, of which the worker has one end and the command the other."""

import asyncio
import errno
import fcntl
import os
import struct
import termios
from typing import IO, Final

from sandherd.contracts.requests.terminal import TerminalSize

_STANDARD_INPUT: Final = 0


class CommandTerminal:
    """The worker's end of a pseudo-terminal. Raises `OSError` if the kernel has no more of them."""

    def __init__(self, size: TerminalSize) -> None:
        self.worker_end, self.command_end = os.openpty()
        self.accepted = 0
        """How many bytes of input the terminal has accepted."""
        self.resize(size)

    def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size: the kernel then sends SIGWINCH to the program in the foreground."""
        fcntl.ioctl(self.worker_end, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def write(self, data: bytes, offset: int) -> int:
        """Write the part of the input from `offset` on that is new and fits into the buffer. Returns `accepted`."""
        new = data[self.accepted - offset :]
        try:
            self.accepted += os.write(self.worker_end, new) if new else 0
        except BlockingIOError:  # the program has to read first
            pass
        except OSError as error:
            if error.errno != errno.EIO:  # no process has the other end any more
                raise
        return self.accepted

    def output(self) -> IO[bytes]:
        """The worker's end as a file, which owns the descriptor."""
        return os.fdopen(self.worker_end, "rb", buffering=0)


class TerminalProtocol(asyncio.StreamReaderProtocol):
    """Reads a terminal until its end, which is EIO: the last process has closed the terminal."""

    def connection_lost(self, error: Exception | None) -> None:
        """Treat EIO as the end of the terminal, and anything else as an error."""
        ended = isinstance(error, OSError) and error.errno == errno.EIO
        super().connection_lost(None if ended else error)


def take_control() -> None:
    """Make standard input the controlling terminal. Called in the child between fork and exec, in its own session."""
    fcntl.ioctl(_STANDARD_INPUT, termios.TIOCSCTTY, 0)
