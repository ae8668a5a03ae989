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
    """The worker's end. Raises `OSError` if there is no terminal left to open."""

    def __init__(self, size: TerminalSize) -> None:
        self.worker_end, self.command_end = os.openpty()
        self.accepted = 0
        """How many bytes of input it has taken."""
        self.resize(size)

    def resize(self, size: TerminalSize) -> None:
        """Change its size: the kernel then sends SIGWINCH to the program in the foreground."""
        fcntl.ioctl(self.worker_end, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))

    def write(self, data: bytes, offset: int) -> int:
        """Write input that begins at `offset`, as far as it is new and fits; returns `accepted`."""
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
    """Reads a terminal: EIO is its end, when the last process has closed it."""

    def connection_lost(self, error: Exception | None) -> None:
        """The end, or an error."""
        ended = isinstance(error, OSError) and error.errno == errno.EIO
        super().connection_lost(None if ended else error)


def take_control() -> None:
    """For the child, between fork and exec, in a session of its own: its standard input becomes its terminal."""
    fcntl.ioctl(_STANDARD_INPUT, termios.TIOCSCTTY, 0)
