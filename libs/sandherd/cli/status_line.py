"""What a command does at present, while it has nothing to show yet: in the last line of a terminal."""

import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

from sandherd.client.terminal_text import clear_progress, write_progress

QUIET_SECONDS: Final = 1.0
"""How long a command shows nothing: most have ended by then."""
INTERVAL_SECONDS: Final = 0.5


class StatusLine:
    """The present step and the time since the beginning, on standard error; nothing if that is not a terminal.

    The line is erased before other output of the command, and at the end. It is written by a thread, so that it also
    continues while the command waits for another program.
    """

    def __init__(self, step: str, *, quiet: float = QUIET_SECONDS) -> None:
        self._step = step
        self._quiet = quiet
        self._ended = threading.Event()
        self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def step(self, text: str) -> None:
        """Another step has begun. An empty one is not shown, as of a program that shows its own progress."""
        self._step = text
        if not text:
            clear_progress()

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            clear_progress()

    def _show(self) -> None:
        wait = self._quiet
        while not self._ended.wait(wait):
            wait = INTERVAL_SECONDS
            if step := self._step:
                write_progress(f"{time.monotonic() - self._begun:3.0f} s  {step}")
