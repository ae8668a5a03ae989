"""Runs tests in several processes (`pytest -n 4 tests`): forks of the one that has collected them.

To import and collect all tests takes 8 seconds of CPU and 400 MB, which is spent once here, instead of once in each
process as by xdist. A fork gets one unit of tests at a time (`tests/grouping.py`), so no test waits in the queue of a
process while others have none left.
"""

import ctypes
import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NoReturn

import pytest

from tests.grouping import unit_of

_PR_SET_PDEATHSIG: Final = 1
_MAIN_ONLY: Final = "main process"
"""The name of the plugin that gets the results of all forks: no fork needs it."""
_shared: list[Path] = []


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """The temporary folder of all processes of a run."""
    return _shared[0] if _shared else factory.getbasetemp()


@dataclass
class Fork:
    """A process that runs tests."""

    number: int
    pid: int
    connection: Connection
    end: int
    """A descriptor that becomes readable when the process ends."""
    tests: deque[int] = field(default_factory=deque)
    """Indexes of the tests that it has to run; it runs the first of them."""


class ForkedRun:
    """The process that hands out tests and receives their reports. `begin` is called first in each fork, `end` last."""

    def __init__(self, session: pytest.Session, count: int, begin: Callable[[], None], end: Callable[[], None]) -> None:
        self._session, self._begin, self._end = session, begin, end
        units: dict[str, list[int]] = {}
        for index, item in enumerate(session.items):
            units.setdefault(unit_of(item.nodeid), []).append(index)
        self._units = deque(units.values())
        self._count = min(count, len(self._units))
        self._forks: dict[int, Fork] = {}
        """By number."""

    def run(self) -> None:
        """Run all tests; no fork is left, however this ends."""
        self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]  # forks have folders in it
        try:
            for number in range(self._count):
                self._fork(number)
            while self._forks:
                self._serve()
        finally:
            for fork in self._forks.values():
                os.kill(fork.pid, signal.SIGKILL)
                os.waitpid(fork.pid, 0)

    def _fork(self, number: int) -> None:
        ours, its = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        if not (pid := os.fork()):
            ours.close()
            for fork in self._forks.values():
                fork.connection.close()
                os.close(fork.end)
            _become(self._session, number, its, self._begin, self._end)
        its.close()
        self._forks[number] = Fork(number, pid, ours, os.pidfd_open(pid))

    def _serve(self) -> None:
        """Wait for a message of any fork, or for its end. What a fork has sent is read before its end is seen."""
        by_source: dict[Any, Fork] = {}
        for fork in self._forks.values():
            by_source |= {fork.connection: fork, fork.end: fork}
        ready = wait(list(by_source))
        for source in sorted(ready, key=lambda it: isinstance(it, int)):
            fork = by_source[source]
            if isinstance(source, int):
                self._ended(fork)
            elif fork.number in self._forks:
                self._receive(fork)

    def _receive(self, fork: Fork) -> bool:
        """Read one message; False if there will be no other."""
        try:
            message = pickle.loads(fork.connection.recv_bytes())
            if message is None:
                unit = self._units.popleft() if self._units else []
                fork.tests.extend(unit)
                fork.connection.send(unit)
            else:
                self._report(fork, message)
        except (EOFError, OSError):  # the process ends, or has ended: its descriptor shows that
            return False
        return True

    def _report(self, fork: Fork, data: Any) -> None:
        config = self._session.config
        report = config.hook.pytest_report_from_serializable(config=config, data=data)
        # pytest recognises by this that tests are run at once, as by xdist.
        name = f"w{fork.number}"
        report.node = SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache=f"[{name}]")
        config.hook.pytest_runtest_logreport(report=report)
        if report.when == "teardown":
            item = self._session.items[fork.tests.popleft()]
            config.hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _ended(self, fork: Fork) -> None:
        """Read what it has sent; if it had tests to run, the one that it ran has failed, and another runs the rest."""
        while fork.connection.poll() and self._receive(fork):
            pass
        del self._forks[fork.number]
        _, status = os.waitpid(fork.pid, 0)
        fork.connection.close()
        os.close(fork.end)
        if not fork.tests:
            return
        item = self._session.items[fork.tests.popleft()]
        text = f"the process that ran {item.nodeid} ended with status {os.waitstatus_to_exitcode(status)}"
        call = pytest.CallInfo.from_call(lambda: pytest.fail(text, pytrace=False), when="call")
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if fork.tests:
            self._units.appendleft(list(fork.tests))
        self._fork(fork.number)


def run_in_forks(
    session: pytest.Session, count: int, begin: Callable[[], None], end: Callable[[], None]
) -> bool | None:
    """Run the tests that were collected in `count` processes; None if pytest is to continue as usual."""
    if not count or session.config.option.collectonly or session.testsfailed:
        return None
    ForkedRun(session, count, begin, end).run()
    return True


def register_in_main(config: pytest.Config, plugin: object) -> None:
    """Register a plugin that gets the results of all processes."""
    config.pluginmanager.register(plugin, _MAIN_ONLY)


class Reporter:
    """A plugin of each fork: sends all reports."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config, self._connection = config, connection

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Send it, as other plugins send reports to other processes."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._connection.send_bytes(pickle.dumps(data))


class Queue:
    """The tests of this process: those it has, and then those it is given on request."""

    def __init__(self, items: Sequence[pytest.Item], connection: Connection) -> None:
        self._items, self._connection = items, connection
        self._tests: deque[int] = deque()

    def next(self) -> pytest.Item | None:
        """The next test; None if there is none."""
        if not self._tests:
            self._connection.send_bytes(pickle.dumps(None))
            self._tests.extend(self._connection.recv())
        return self._items[self._tests.popleft()] if self._tests else None


class NextItem:
    """The test after the present one, as the teardown uses it: it is only asked for when the present one has run."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._found: list[pytest.Item | None] = []

    def get(self) -> pytest.Item | None:
        """The next test; None if there is none."""
        if not self._found:
            self._found.append(self._queue.next())
        return self._found[0]

    def __bool__(self) -> bool:
        return self.get() is not None

    def listchain(self) -> Iterable[Any]:
        """The nodes that it shares fixtures with."""
        item = self.get()
        return item.listchain() if item else []


def _become(
    session: pytest.Session, number: int, connection: Connection, begin: Callable[[], None], end: Callable[[], None]
) -> NoReturn:
    """Run tests until there is none left; ends the process."""
    status = 1
    try:
        _separate(session.config, number)
        session.config.pluginmanager.register(Reporter(session.config, connection))
        begin()
        queue = Queue(session.items, connection)
        item = queue.next()
        while item is not None:
            following = NextItem(queue)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            item = following.get()
        end()
        status = 0
    except BaseException:  # noqa: BLE001  # a fork never continues as its parent does
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _separate(config: pytest.Config, number: int) -> None:
    """Signals, temporary folder, captured output and terminal of its own."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    _shared.append(factory.getbasetemp())
    factory._basetemp = _shared[0] / f"w{number}"
    factory._basetemp.mkdir(mode=0o700, exist_ok=True)
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()  # its files would be shared with all other forks
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.pluginmanager.unregister(name=_MAIN_ONLY)
    config.get_terminal_writer()._file = Path(os.devnull).open("w")  # noqa: SIM115  # until the process ends
