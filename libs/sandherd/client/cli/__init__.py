"""The `sandherd` command. What a command needs is loaded when it runs, so that `--help` is quick."""

import sys
from collections.abc import Sequence

from sandherd.lean import start_lean


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and leave the process with its status: 0, 1 (it failed) or 2 (it was misused)."""
    start_lean()
    from sandherd.client.cli.leaving import status_of
    from sandherd.client.terminal_text import put_traceback

    sys.excepthook = put_traceback
    sys.exit(status_of(sys.argv[1:] if arguments is None else arguments))
