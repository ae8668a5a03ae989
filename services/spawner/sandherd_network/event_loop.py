"""A small event loop over epoll: callbacks for descriptors, and periodic checks for timeouts.

asyncio is not used, because each sandbox has a process with this loop, and asyncio would double the process's memory.
"""

import select
import time
from collections.abc import Callable
from contextlib import suppress

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
Callback = Callable[[int], None]


class EventLoop:
    """Runs callbacks until `stop` is called. `now` is the monotonic time of the current iteration, in seconds."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._poll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._ticks: list[Callable[[], float | None]] = []
        self._is_stopped = False

    def watch(self, descriptor: int, interest: int, callback: Callback) -> None:
        """Call `callback` when the descriptor is ready for `interest`: `READ`, `WRITE`, or both; 0: stop watching."""
        is_watched = descriptor in self._callbacks
        if not interest:
            self.unwatch(descriptor)
        elif is_watched:
            self._callbacks[descriptor] = callback
            self._poll.modify(descriptor, interest)
        else:
            self._callbacks[descriptor] = callback
            self._poll.register(descriptor, interest)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching a descriptor. Must be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._poll.unregister(descriptor)

    def every_iteration(self, tick: Callable[[], float | None]) -> None:
        """Call `tick` in every iteration. It returns the maximum seconds until its next call; None: no maximum."""
        self._ticks.append(tick)

    def stop(self) -> None:
        """End after this iteration."""
        self._is_stopped = True

    def run(self) -> None:
        """Run until stopped."""
        while not self._is_stopped:
            waits = [wait for tick in self._ticks if (wait := tick()) is not None]
            events = self._poll.poll(max(0.0, min(waits)) if waits else None)
            self.now = time.monotonic()
            for descriptor, ready in events:
                # An earlier callback of this iteration may have closed the descriptor.
                if callback := self._callbacks.get(descriptor):
                    callback(ready)
