"""Shows what a command does while it has no output yet, in the last line of a terminal."""

import sys
import threading
import time
from types import TracebackType
from typing import Final, Self

from sandherd.client.terminal_text import clear_progress, write_progress

QUIET_SECONDS: Final = 1.0
"""How long a command runs before the line is shown: most commands have ended by then."""
INTERVAL_SECONDS: Final = 0.5
"""The interval at which the line is updated."""


class StatusLine:
    """Shows the present step and the time since the beginning, if standard error is a terminal.

    The line is erased before other output of the command, and at the end. A thread writes it, so that it is also
    updated while the command waits for another program. It is first shown after `quiet` seconds.
    """

    def __init__(self, step: str, *, quiet: float = QUIET_SECONDS) -> None:
        self._step = step
        self._quiet = quiet
        self._ended = threading.Event()
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._show, daemon=True) if sys.stderr.isatty() else None

    def step(self, text: str) -> None:
        """Show another step. With an empty text no line is shown: the step shows its progress itself."""
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
                write_progress(f"{time.monotonic() - self._started:3.0f} s  {step}")
