"""The line that shows what a command does: only on a terminal, erased before other output and at the end."""

import os
import pty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sandherd.cli.file_copy import ProgressBar
from sandherd.cli.status_line import StatusLine
from sandherd.cli.stderr import print_error
from tests.terminals import ERASED, left_on_screen


class Screen:
    """The other end of the terminal that standard error is."""

    def __init__(self, controller: int) -> None:
        self._controller = controller
        self.shown = ""

    def read_until(self, text: str) -> None:
        """Wait until the text is shown."""
        while text not in self.shown:
            self.shown += os.read(self._controller, 65536).decode()


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """Standard error is a terminal. No fixture: pytest replaces the streams between its setup and the test."""
    controller, place = pty.openpty()
    with os.fdopen(place, "w", encoding="utf-8") as stream, monkeypatch.context() as patched:
        patched.setattr("sys.stderr", stream)
        yield Screen(controller)
    os.close(controller)


def test_each_step_is_shown_and_erased_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps follow each other in one line; hostile text in it can't control the terminal."""
    with terminal(monkeypatch) as screen:
        with StatusLine("step one", quiet=0) as activity:
            screen.read_until("step one")
            activity.step("step\x1b[2J\ntwo")
            screen.read_until("step␛[2J two")
        print_error("end")
        screen.read_until("end\r\n")
        assert left_on_screen(screen.shown) == "sandherd: end\n"


def test_other_output_erases_the_line_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """No output is appended to the line, also while the command continues."""
    with terminal(monkeypatch) as screen:
        with StatusLine("step one", quiet=0):
            screen.read_until("step one")
            print_error("a warning")
            screen.read_until("a warning\r\n")
            screen.read_until("step one")
        assert f"{ERASED}sandherd: a warning\r\n" in screen.shown


def test_long_line_is_cut_to_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could be erased only in part. A terminal without a size is taken for one of 80 columns."""
    with terminal(monkeypatch) as screen:
        with StatusLine("漢" * 100, quiet=0):
            screen.read_until("漢")
            print_error("end")
            screen.read_until("end\r\n")
        line = screen.shown.split(ERASED)[1]
        assert len(line) < 80
        assert sum(2 if letter == "漢" else 1 for letter in line) <= 79


def test_bar_of_a_copy_is_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left."""
    with terminal(monkeypatch) as screen:
        with ProgressBar("file\x1b]0;x") as bar:
            bar.move(1, 2)
            screen.read_until("50%")
        print_error("end")
        screen.read_until("end\r\n")
        assert "\x1b]" not in screen.shown
        assert left_on_screen(screen.shown) == "sandherd: end\n"


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    """A program that reads standard error gets neither a status line nor the sequence that erases it."""
    with StatusLine("step one", quiet=0) as activity, ProgressBar("file") as bar:
        activity.step("step two")
        bar.move(1, 2)
    assert capfd.readouterr() == ("", "")
