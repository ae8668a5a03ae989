"""Runs the process of one group, and ends everything that it has started, however the measurement ends.

The process and all that it starts have a temporary directory of their own; the reaper of the tests (`run_reaper.py`)
ends what belongs to it and removes it, even if this process is killed. Their output is appended to the log.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from tests import run_reaper
from tests.bench.catalog import Group
from tests.bench.figures import Measured, Sample, summarize
from tests.bench.options import ROOT
from tests.bench.progress import Step
from tests.bench.shared_memory import SharedMemory
from tests.run_lifetime import MARK

_TICK: Final = 1.0
"""Seconds between updates of the live line: more would disturb what is measured."""
_GRACE: Final = 5.0
"""Seconds in which a cancelled measurement may end what it has started."""
_REAPING: Final = 60.0


class GroupFailedError(Exception):
    """A group was not measured. The message says why."""


class GroupRun:
    """The process of a group. Use it as a context manager; at its end nothing of it remains."""

    def __init__(self, group: Group, runs: int, log: Path) -> None:
        self.group, self.runs, self._log = group, group.runs(runs), log
        self.step = Step()
        self._samples: dict[str, list[Sample]] = {figure.name: [] for figure in group.figures}

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="sb-"))  # short: paths of sockets below it are limited
        self._folder.chmod(0o1777)  # as `/tmp`: Postgres and isolated sandboxes are other users
        self._reaper = subprocess.Popen(
            [sys.executable, "-I", "-S", run_reaper.__file__, self._folder.name, str(self._folder), str(os.getpid())],
            env={"PATH": os.environ["PATH"]}, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            start_new_session=True, text=True,
        )  # fmt: skip
        assert self._reaper.stdout is not None
        self._reaper.stdout.readline()  # until it ignores signals, and watches this process
        self._note(f"--- {self.group.name}")
        self._pipe, writing = os.pipe()
        try:
            self._process = self._start(writing)
        finally:
            os.close(writing)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._cancel()
        finally:
            memory = SharedMemory.of_servers_below(self._folder)
            left, _ = self._reaper.communicate("e", timeout=_REAPING)
            self._process.wait()
            memory.remove()
            os.close(self._pipe)
            for line in left.splitlines():
                self._note(f"left by {self.group.name} and ended: {line}")

    def measure(self, tick: Callable[[Step], None]) -> list[Measured]:
        """Wait for the results of all figures; calls `tick` about once a second. Raises `GroupFailedError`."""
        ended: tuple[str | None] | None = None
        for message in self._messages(tick):
            if "end" in message:
                ended = (message["end"],)
            else:
                self._take(message)
        status = self._process.wait()
        if ended is None or (status and ended[0] is None):
            raise GroupFailedError(f"its process ended with status {status}")
        if ended[0] is not None:
            raise GroupFailedError(ended[0])
        return [self._summary(figure.name) for figure in self.group.figures]

    def _start(self, writing: int) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.bench.group_process", self.group.measure, str(self.runs), str(writing)],
                cwd=ROOT, env={**os.environ, "TMPDIR": str(self._folder), MARK: self._folder.name},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=[writing], start_new_session=True,
            )  # fmt: skip

    def _messages(self, tick: Callable[[Step], None]) -> Iterator[dict[str, Any]]:
        """The messages of `recorder.py`, until the process closes the pipe."""
        rest = b""
        while True:
            tick(self.step)
            if not select.select([self._pipe], [], [], _TICK)[0]:
                continue
            if not (data := os.read(self._pipe, 65536)):
                return
            *lines, rest = (rest + data).split(b"\n")
            yield from map(json.loads, lines)

    def _take(self, message: dict[str, Any]) -> None:
        results = sum(map(len, self._samples.values()))
        if "begin" in message:
            expected = self.runs * len(self.group.figures)
            self.step = Step(message["begin"], message["run"], self.runs, results, expected)
            self._note(f"--- {self.step.figure}, run {self.step.run} of {self.runs}")
        elif (samples := self._samples.get(message["figure"])) is not None:
            samples.append(Sample(message["ours"], message["baseline"]))
        else:
            raise GroupFailedError(f"{message['figure']} is not declared in tests/bench/catalog.py")

    def _note(self, line: str) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")

    def _summary(self, name: str) -> Measured:
        figure = next(figure for figure in self.group.figures if figure.name == name)
        try:
            return summarize(figure, self._samples[name])
        except ValueError as error:
            raise GroupFailedError(str(error)) from None

    def _cancel(self) -> None:
        """Cancel the measurement, which stops its servers in order; the reaper ends the rest."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
