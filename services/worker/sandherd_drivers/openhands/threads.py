"""The loop's threads, where the SDK runs an agent's tools; it can be seen whether one still runs."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

_MOST: Final = 32


class Threads(ThreadPoolExecutor):
    """A pool that knows what it is doing. All is handed to it by the loop's thread."""

    def __init__(self) -> None:
        super().__init__(_MOST, thread_name_prefix="tools")
        self._doing: set[Future[Any]] = set()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run it in a thread."""
        future = super().submit(fn, *args, **kwargs)
        self._doing = {other for other in self._doing if not other.done()} | {future}
        return future

    @property
    def busy(self) -> bool:
        """Whether something runs or waits to run."""
        return any(not future.done() for future in self._doing)
