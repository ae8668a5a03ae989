"""The command `sandherd` as forks of one process that has its modules, for tests that do not test a cold start.

A start of Python with these modules takes 0.25 s of CPU, a fork a tenth of it. `program` is a file to run in place of
`.venv/bin/sandherd`. It has its own process id, and passes on its arguments, environment, working directory, file mode
mask, standard streams and signals; its exit status is the command's. One difference remains: the command is in the
session of its server, not in the caller's, so a terminal's Ctrl-C doesn't reach it.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Final

from sandherd.stack import supervisor_process
from tests.run_reports import SERVERS

_HERE: Final = Path(__file__).parent
_SANDHERD: Final = Path(sys.executable).with_name("sandherd")
_RUNNING: Final = ExitStack()


@cache
def preloaded_sandherd() -> Path:
    """The program of this test process. Its server is started with the first call, and ended by `end`.

    The stacks that it starts, and those that `sandherd.stack.up` starts in this process from then on, are forks too.
    """
    folder = Path(mkdtemp(prefix="c-"))
    folder.chmod(0o755)
    program, server = _RUNNING.enter_context(preloaded(folder))
    SERVERS.add(server)
    supervisor_process.PROGRAM[0] = str(program.with_name("python"))
    return program


def preloaded_python() -> Path:
    """A Python for programs of tests that load the services; they are forks, whose process id is not the program's.

    Signals that can't be caught are not passed on, except SIGKILL, which ends the program too.
    """
    return preloaded_sandherd().with_name("python")


def end() -> None:
    """End the server, if there is one."""
    SERVERS.clear()
    supervisor_process.PROGRAM[0] = sys.executable
    _RUNNING.close()


@contextmanager
def preloaded(
    folder: Path, line: Callable[..., Sequence[str]] = lambda *words: words, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[Path, int]]:
    """The program in this folder, and the process id of its server, until the end of the context.

    The folder's path is part of a socket's, which is limited: it has to be short. `line` and `environ` are the command
    line that runs the server, as another user, and its environment.
    """
    socket, program = folder / "s", folder / "sandherd"
    launcher = (_HERE / "launcher.py").read_text()
    for file, stands_for in ((program, _SANDHERD), (folder / "python", Path(sys.executable))):
        file.write_text(f"#!{sys.executable} -IS\n{launcher}\n\nmain({str(socket)!r}, {str(stands_for)!r})\n")
        file.chmod(0o755)
    server = subprocess.Popen(
        line(sys.executable, "-P", str(_HERE / "server.py"), str(socket)),
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        assert server.stdout.read(1) == b"r"
        yield program, server.pid
    finally:
        server.stdin.close()
        server.wait()
        server.stdout.close()
