"""`make bench`: every figure beside its baseline, measured several times in the same run, on the real parts.

Shows the median and the range of the runs, and stores them in `build/bench.json`. Logs are in `build/bench.log`.
"""

import argparse
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Final, NoReturn

from tests.bench import options, results
from tests.bench.catalog import GROUPS, Group, UnknownGroupError, select
from tests.bench.comparison import read_figures
from tests.bench.figures import Measured
from tests.bench.progress import Screen
from tests.bench.results import ResultError
from tests.bench.session import Session
from tests.bench.tables import group_lines, wrap

FAILED: Final = 1
UNUSABLE: Final = 2
WORSE: Final = 3


class Interrupted(BaseException):  # not an error, like KeyboardInterrupt
    """SIGINT, SIGTERM or SIGHUP was received."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


def main(arguments: Sequence[str] | None = None, groups: Sequence[Group] = GROUPS) -> int:
    """Measure, show and store. Returns the exit status."""
    given = options.parse(arguments, groups)
    screen = Screen()
    if given.list:
        screen.print(*group_lines(groups))
        return 0
    try:
        session = Session(select(given.only, groups), given.runs, given.result, screen)
        before = read_figures(given.against) if given.against else None
        stored = results.load(given.result)  # an unusable file is reported before anything is measured
    except (UnknownGroupError, ResultError) as error:
        return _complain(str(error))
    if given.show:
        session.found = {group.name: stored[group.name] for group in session.groups if group.name in stored}
        if not session.found:
            return _complain(f"{given.result} has no results of these groups: measure them with `make bench`")
        return _report(session, before, given)
    try:
        with _signals(), screen:
            session.measure()
    except Interrupted as interrupted:
        finished = ", ".join(session.found) or "no group"
        screen.print(*wrap(f"interrupted by {interrupted}; measured and stored in {given.result}: {finished}"))
        return interrupted.status
    return _report(session, before, given)


def _report(session: Session, before: Mapping[str, Measured] | None, given: argparse.Namespace) -> int:
    session.show()
    worse = before is not None and bool(session.found) and session.compare(before, given.fail_if_worse)
    return FAILED if session.failed else WORSE if worse else 0


def _complain(text: str) -> int:
    for line in wrap(text):
        print(line.plain, file=sys.stderr)
    return UNUSABLE


@contextmanager
def _signals() -> Iterator[None]:
    """Raise `Interrupted` at a signal that ends the measurement; a second one ends it without delay."""

    def interrupt(number: int, _frame: FrameType | None) -> NoReturn:
        raise Interrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
