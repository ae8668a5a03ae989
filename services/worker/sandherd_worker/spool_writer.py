"""The thread that does the spool's disk access, one call at a time, in the order of the calls.

An executor would take 40 µs more CPU time per call, as much as making the record of an event.
"""

import asyncio
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Final, TypeVar

ResultT = TypeVar("ResultT")
DoneCallback = Callable[[BaseException | None], None]


class SpoolWriter:
    """One thread, started by the first call. Only one event loop may use it."""

    def __init__(self) -> None:
        self._calls: Final[SimpleQueue[Callable[[], None] | None]] = SimpleQueue()
        self._thread: Thread | None = None

    def call(self, work: Callable[[], object], done: DoneCallback) -> None:
        """Run `work` in the thread. Then call `done` in the event loop with the raised exception, or None."""
        if self._thread is None:
            # A disk that hangs must not keep the process from ending.
            self._thread = Thread(target=self._run, name="spool", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()

        def run() -> None:
            raised: BaseException | None = None
            try:
                work()
            except BaseException as error:  # noqa: BLE001  # `done` handles it
                raised = error
            loop.call_soon_threadsafe(done, raised)

        self._calls.put(run)

    async def result(self, work: Callable[[], ResultT]) -> ResultT:
        """Run `work` in the thread, and wait for its result. It is run even if the caller is cancelled."""
        finished: asyncio.Future[ResultT] = asyncio.get_running_loop().create_future()
        results: list[ResultT] = []

        def done(raised: BaseException | None) -> None:
            if finished.done():
                return
            if raised is None:
                finished.set_result(results[0])
            else:
                finished.set_exception(raised)

        self.call(lambda: results.append(work()), done)
        return await finished

    def shutdown(self) -> None:
        """End the thread after all earlier calls, and wait for its end."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
