"""The program of `preloaded`: it requests a fork from the server, and represents it.

The text of this file is such a program. It imports only what Python has already loaded: each further module costs a
millisecond of each command.
"""

import _signal  # type: ignore[import-not-found]  # `signal` loads `enum`
import _socket
import marshal
import os
import sys

CAUGHT = (_signal.SIGINT, _signal.SIGTERM, _signal.SIGHUP, _signal.SIGQUIT, _signal.SIGUSR1, _signal.SIGUSR2)


class Launcher:
    """The connection to the server, and the process id of the command, once it is known."""

    def __init__(self, socket: str) -> None:
        self._child = 0
        self._early: list[int] = []
        # This includes a signal that is ignored here, as Ctrl-C is in a test run in the background.
        for number in CAUGHT:
            _signal.signal(number, self._forward)
        self._line = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._line.connect(socket)

    def run(self, arguments: list[str]) -> None:
        """Run the command, and end as it does."""
        self._request(arguments)
        self._child = self._number()
        for number in self._early:
            self._forward(number, None)
        status = self._number()
        if status < 0:
            if -status != _signal.SIGKILL:
                _signal.signal(-status, _signal.SIG_DFL)
            os.kill(os.getpid(), -status)
        os._exit(status)

    def _request(self, arguments: list[str]) -> None:
        mask = os.umask(0)
        os.umask(mask)
        wanted = marshal.dumps((arguments, dict(os.environb), os.fsencode(os.getcwd()), mask))  # noqa: PTH109  # no Path
        streams = [number for number in (0, 1, 2) if is_open(number)]
        head = len(wanted).to_bytes(4, "little") + bytes(number in streams for number in (0, 1, 2))
        rights = b"".join(number.to_bytes(4, "little") for number in streams)
        self._line.sendmsg([head], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)] if streams else [])
        self._line.sendall(wanted)

    def _number(self) -> int:
        """The server's next number; the process ends if the server does."""
        found = b""
        while len(found) < 4:
            more = self._line.recv(4 - len(found))
            if not more:
                os._exit(70)
            found += more
        return int.from_bytes(found, "little", signed=True)

    def _forward(self, number: int, _frame: object) -> None:
        """Pass a signal on to the command; one that comes before its process is known is passed on later."""
        if self._child:
            os.kill(self._child, number)
        else:
            self._early.append(number)


def is_open(descriptor: int) -> bool:
    """Whether a standard stream is open."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def main(socket: str, program: str) -> None:
    """Run a command, as this program with the arguments of this process."""
    Launcher(socket).run([program, *sys.argv[1:]])
