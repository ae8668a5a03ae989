"""The event loop of `SyncHerd`: what runs in it, and how its work ends."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress

import pytest

from sandherd.client import HerdError, SyncHerd
from sandherd.client.sync.loop_thread import LoopThread, _Work
from tests.patience import PATIENCE


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    thread = LoopThread()
    yield thread
    thread.close()


async def numbers(ended: list[str]) -> AsyncIterator[int]:
    try:
        for number in range(1000):
            yield number
    finally:
        ended.append("ended")


def test_work_runs_in_one_other_thread(loop: LoopThread) -> None:
    """From whichever thread it is given; results and errors are those of the work."""

    async def whose() -> threading.Thread:
        return threading.current_thread()

    async def failing() -> None:
        raise ValueError("mine")

    assert loop.run(whose) is loop.run(whose) is not threading.current_thread()
    with pytest.raises(ValueError, match="mine"):
        loop.run(failing)


def test_generator_that_is_left_ends_its_source(loop: LoopThread) -> None:
    """The source also ends if the generator was read to its end."""
    ended: list[str] = []
    items = loop.iterate(lambda: numbers(ended))
    assert [next(items), next(items)] == [0, 1]
    items.close()
    assert ended == ["ended"]
    assert len(list(loop.iterate(lambda: numbers(ended)))) == 1000


def test_callback_that_would_wait_for_its_own_thread_is_an_error(loop: LoopThread) -> None:
    """It would never end."""

    async def calling() -> None:
        loop.run(lambda: asyncio.sleep(0))

    with pytest.raises(RuntimeError, match="callback"):
        loop.run(calling)


def test_closing_ends_what_other_threads_wait_for() -> None:
    """They get an error, and so does each later call; closing twice is one closing."""
    loop, errors = LoopThread(), []
    begun = threading.Event()

    async def waiting() -> None:
        begun.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            loop.run(waiting)
        except HerdError as error:
            errors.append(str(error))

    other = threading.Thread(target=wait)
    other.start()
    begun.wait()
    loop.close()
    loop.close()
    other.join()
    assert errors == ["the connection was closed meanwhile"]
    with pytest.raises(HerdError, match="closed"):
        loop.run(waiting)


def test_context_is_left_in_the_task_that_entered_it(loop: LoopThread) -> None:
    """It is also left after an error in it. An error on entering is raised."""
    tasks: list[object] = []
    empty: dict[int, int] = {}

    @asynccontextmanager
    async def context(*, fails: bool = False) -> AsyncIterator[int]:
        tasks.append(asyncio.current_task())
        if fails:
            raise ValueError("no entry")
        yield 7
        tasks.append(asyncio.current_task())

    with pytest.raises(KeyError), loop.entered(context()) as found:
        empty[found]
    assert tasks[0] is tasks[1]
    with pytest.raises(ValueError, match="no entry"), loop.entered(context(fails=True)):
        pass


def test_work_that_is_cancelled_before_it_begins_has_an_outcome() -> None:
    """An interrupt while the loop's thread is busy would otherwise wait forever."""
    thread = LoopThread()
    try:
        unstarted = _Work(lambda: asyncio.Event().wait())

        async def cancelled_at_once() -> None:
            unstarted.start()
            unstarted.cancel()

        thread.run(cancelled_at_once)
        with pytest.raises(HerdError):
            unstarted.outcome.result(PATIENCE)
    finally:
        thread.close()


def test_thread_that_was_not_started_is_closed() -> None:
    """An interrupt may come before the first work."""
    thread = LoopThread()
    thread.close()
    with pytest.raises(HerdError, match="closed"):
        thread.run(lambda: asyncio.sleep(0))


def test_forked_child_is_refused() -> None:
    """It has no thread that would do the work."""
    thread = LoopThread()
    try:
        thread.run(lambda: asyncio.sleep(0))
        thread._process += 1
        with pytest.raises(HerdError, match="parent process"):
            thread.run(lambda: asyncio.sleep(0))
        thread._process -= 1
    finally:
        thread.close()


def test_sync_herd_without_a_connection_names_connect() -> None:
    """The error does not name the arguments that `connect` passes."""
    with pytest.raises(TypeError, match=r"with SyncHerd.connect\(\) as herd"):
        SyncHerd()


async def stubborn(begun: threading.Event) -> None:
    """A loop around `asyncio.wait_for` of Python 3.11 that loses a cancellation at the same time as a reply."""
    with suppress(asyncio.CancelledError):
        begun.set()
        await asyncio.Event().wait()
    await asyncio.Event().wait()


def test_close_ends_work_that_swallows_a_cancellation() -> None:
    """The program that closes its connection does not wait for it forever."""
    thread, begun = LoopThread(), threading.Event()
    working = threading.Thread(target=lambda: suppress_closed(lambda: thread.run(lambda: stubborn(begun))), daemon=True)
    working.start()
    assert begun.wait(PATIENCE)
    closing = threading.Thread(target=thread.close, daemon=True)
    closing.start()
    closing.join(PATIENCE)
    assert not closing.is_alive()
    working.join(PATIENCE)
    assert not working.is_alive()


def suppress_closed(call: Callable[[], object]) -> None:
    with suppress(HerdError):
        call()
