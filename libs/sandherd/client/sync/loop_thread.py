"""An event loop in a separate thread, in which other threads use asynchronous objects."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from sandherd.client.errors import HerdError, closed_error
from sandherd.concurrency import SHORT_CLEANUP_SECONDS, cancel_and_wait
from sandherd.contracts.errors import Code

T = TypeVar("T")
_END_OF_ITERATION: Final = object()


class LoopThread:
    """A running event loop. Any thread may use it, except its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._closed = False
        self._process = os.getpid()
        # A daemon thread, so that a program can end without closing this object. The first call starts the thread, so
        # that an interrupted start leaves an object that can be closed.
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandherd-client", daemon=True)

    def run(self, create: Callable[[], Awaitable[T]]) -> T:
        """Call `create` and await its result in the loop's thread. Raises its exceptions; `HerdError` after `close`.

        If the waiting thread is interrupted (Ctrl-C), the work is cancelled, and has ended when this method raises.
        """
        work = self._start(create)
        try:
            return work.outcome.result()
        except BaseException:
            self._cancel(work)
            raise

    def call(self, create: Callable[[], T]) -> T:
        """Call `create` in the loop's thread, and return its result."""

        async def called() -> T:
            return create()

        return self.run(called)

    def iterate(self, create: Callable[[], AsyncIterator[T]]) -> Generator[T]:
        """The items of the iterator that `create` returns. The iterator is closed with this generator."""
        items = self.call(create)
        try:
            while (item := self.run(lambda: _next(items))) is not _END_OF_ITERATION:
                yield item
        finally:
            close = getattr(items, "aclose", None)
            if close is not None and not self._closed:
                self.run(close)

    @contextmanager
    def entered(self, context: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter an asynchronous context, and yield its value.

        One task enters and leaves the context, because `asyncio.timeout` requires this.
        """
        value_future: Future[T] = Future()
        closing = asyncio.Event()

        async def hold_open() -> None:
            try:
                async with context as found:
                    value_future.set_result(found)
                    await closing.wait()
            except BaseException as error:
                if value_future.done():
                    raise
                value_future.set_exception(error)

        work = self._start(hold_open)
        try:
            yield value_future.result()
        except BaseException:
            if not value_future.done():
                self._loop.call_soon_threadsafe(work.cancel)
            raise
        finally:
            self._loop.call_soon_threadsafe(closing.set)
            work.outcome.result()

    def close(self) -> None:
        """Cancel running work, and end the thread. Calls in other threads raise `HerdError`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if os.getpid() != self._process:
            return  # this process is a fork: the thread exists only in its parent
        if self._thread.ident is not None:
            asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def _cancel(self, work: "_Work[Any]") -> None:
        """Cancel work, and wait until it has ended. Repeats the cancellation, because the work may swallow it."""
        while not work.outcome.done():
            self._loop.call_soon_threadsafe(work.cancel)
            with suppress(TimeoutError):
                work.outcome.exception(SHORT_CLEANUP_SECONDS)

    def _start(self, create: Callable[[], Awaitable[T]]) -> "_Work[T]":
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a callback of SyncHerd can't call its methods, because they wait for the thread that runs the callback"
            )
        if os.getpid() != self._process:
            raise HerdError.of(
                Code.UNAVAILABLE, "the connection belongs to the parent process", remedy="connect in the child as well"
            )
        work = _Work(create)
        with self._lock:
            if self._closed:
                raise closed_error()
            if self._thread.ident is None:
                self._thread.start()
            self._loop.call_soon_threadsafe(work.start)
        return work


class _Work(Generic[T]):
    """One piece of work in the loop, and its outcome for the thread that waits for it."""

    def __init__(self, create: Callable[[], Awaitable[T]]) -> None:
        self.outcome: Future[T] = Future()
        self._make = create
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the work. Called in the loop's thread."""
        self._task = asyncio.ensure_future(self._run())
        self._task.add_done_callback(self._set_cancelled_outcome)

    def cancel(self) -> None:
        """Cancel the work. Called in the loop's thread."""
        if self._task is not None:
            self._task.cancel()

    def _set_cancelled_outcome(self, _task: "asyncio.Task[None]") -> None:
        """Set the outcome of a task that was cancelled before it began."""
        if not self.outcome.done():
            self.outcome.set_exception(_cancelled_error())

    async def _run(self) -> None:
        try:
            self.outcome.set_result(await self._make())
        except asyncio.CancelledError:
            self.outcome.set_exception(_cancelled_error())
        except BaseException as error:  # noqa: BLE001  # raised in the thread that waits for it
            self.outcome.set_exception(error)


async def _next(items: AsyncIterator[T]) -> T | Any:
    return await anext(items, _END_OF_ITERATION)


async def _cancel_others() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    # The cancellation is repeated: nats-py's tasks may swallow one (see `concurrency`), and the thread would not end.
    await cancel_and_wait(others, again_after=SHORT_CLEANUP_SECONDS)
    await asyncio.get_running_loop().shutdown_asyncgens()
    await asyncio.get_running_loop().shutdown_default_executor()


def _cancelled_error() -> HerdError:
    return HerdError.of(Code.UNAVAILABLE, "the connection was closed meanwhile", remedy="connect again")
