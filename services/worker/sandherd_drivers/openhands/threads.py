"""The loop's threads, in which the SDK runs an agent's tools, and whether any of them still runs."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_MAX_THREADS: Final = 32


class Threads(ThreadPoolExecutor):
    """A thread pool that tracks its work. Only the loop's thread submits to it."""

    def __init__(self) -> None:
        super().__init__(_MAX_THREADS, thread_name_prefix="tools")
        self._futures: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run a function in a thread, and track it."""
        future = super().submit(fn, *args, **kwargs)
        self._futures = {other for other in self._futures if not other.done()} | {future}
        return future

    @property
    def is_busy(self) -> bool:
        """Whether any work runs or waits to run."""
        return any(not future.done() for future in self._futures)
