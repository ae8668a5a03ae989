"""The `sandherd` command. Each command imports its dependencies when it runs, so that `--help` is fast.

Imported here is only what Python itself has loaded: an interrupt before `main` is called shows a traceback.
"""

import os
import sys

_INTERRUPTED = 130
"""As `cli.exit_status`, which may not be loaded yet."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command and exit with its status: 0, 1 (it failed) or 2 (wrong usage).

    An interrupt while modules are loaded ends it, too, without a traceback.
    """
    try:
        _run(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        os._exit(_INTERRUPTED)


def _run(arguments: list[str]) -> None:
    from sandherd.lazy_imports import start_lean

    start_lean()
    from sandherd.cli.exit_status import status_of
    from sandherd.client.terminal_text import open_streams, write_traceback

    open_streams()
    sys.excepthook = write_traceback
    _exit(status_of(arguments))


def _exit(status: int) -> None:
    """End the process without destroying each object in it, which takes as much CPU time as connecting to the broker.

    What Python does besides is done: handlers of `atexit` run, and output is flushed. If that fails, Python ends the
    process as usual, and reports it.
    """
    import atexit

    from sandherd.client.terminal_text import flush_output

    atexit._run_exitfuncs()  # noqa: SLF001  # there is no public name
    try:
        flush_output()
    except (OSError, ValueError):  # a full disk, or a closed stream
        sys.exit(status)
    os._exit(status)
