"""Turns signals that end a command into a cancellation of its task."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interruptible() -> Iterator[None]:
    """A context in which SIGINT, SIGTERM and SIGHUP cancel the current asyncio task, so that it can clean up.

    A signal that is ignored, as SIGHUP under `nohup`, stays ignored.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    if task is None:
        raise RuntimeError("only a task can be interrupted")
    previous_handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    numbers = [number for number, handler in previous_handlers.items() if handler is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, task.cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, previous_handlers[number])
