"""A small event loop over epoll: callbacks for descriptors, and a check of what has become too old.

Not asyncio: there is one such process for each sandbox, and asyncio alone doubles the memory that it takes.
"""

import select
import time
from collections.abc import Callable
from contextlib import suppress

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
Callback = Callable[[int], None]


class Loop:
    """Calls back until `stop` is called. `now` is the time of this round, in seconds."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self._poll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._ticks: list[Callable[[], float | None]] = []
        self._stopped = False

    def watch(self, descriptor: int, interest: int, callback: Callback) -> None:
        """Call back when it is readable or writable; with no interest it is not looked at any more."""
        known = descriptor in self._callbacks
        if not interest:
            self.forget(descriptor)
        elif known:
            self._callbacks[descriptor] = callback
            self._poll.modify(descriptor, interest)
        else:
            self._callbacks[descriptor] = callback
            self._poll.register(descriptor, interest)

    def forget(self, descriptor: int) -> None:
        """Look at it no more. Has to be called before it is closed."""
        if self._callbacks.pop(descriptor, None) is not None:
            with suppress(OSError):
                self._poll.unregister(descriptor)

    def every_round(self, tick: Callable[[], float | None]) -> None:
        """Call this in every round. It returns in how many seconds it has to be called again; None: it need not be."""
        self._ticks.append(tick)

    def stop(self) -> None:
        """End after this round."""
        self._stopped = True

    def run(self) -> None:
        """Until it is stopped."""
        while not self._stopped:
            waits = [wait for tick in self._ticks if (wait := tick()) is not None]
            events = self._poll.poll(max(0.0, min(waits)) if waits else None)
            self.now = time.monotonic()
            for descriptor, found in events:
                # One that an earlier callback of this round has closed is not there any more.
                if callback := self._callbacks.get(descriptor):
                    callback(found)
