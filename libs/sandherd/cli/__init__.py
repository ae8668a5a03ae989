"""The `sandherd` command. Each command imports its dependencies when it runs, so that `--help` is fast.

This module imports only what Python has loaded anyway, because an interrupt before `main` runs shows a traceback.
"""

import os
import sys

_INTERRUPTED = 130
"""The value of `cli.exit_status.INTERRUPTED`; that module may not be loaded yet."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its status: usually 0, 1 (it failed) or 2 (wrong usage).

    An interrupt while modules are loaded also ends the process without a traceback.
    """
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _run(arguments: list[str]) -> None:
    from sandherd.lazy_imports import start_lean

    start_lean()
    from sandherd.cli.exit_status import run_command
    from sandherd.client.terminal_text import open_streams, write_traceback

    open_streams()
    sys.excepthook = write_traceback
    _exit(run_command(arguments))


def _exit(status: int) -> None:
    """End the process without destroying its objects, which takes as much CPU time as connecting to the broker.

    The other steps of a normal exit are done: handlers of `atexit` run, and output is flushed. If output can't be
    flushed, Python ends the process as usual and reports the error.
    """
    import atexit

    from sandherd.client.terminal_text import flush_output

    atexit._run_exitfuncs()  # noqa: SLF001  # there is no public name
    try:
        flush_output()
    except (OSError, ValueError):  # a full disk, or a closed stream
        sys.exit(status)
    os._exit(status)
