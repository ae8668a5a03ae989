"""Commands whose output or whose messages can't be written, as processes of their own."""

import os
import subprocess
import sys

import pytest

COMMAND = """
import typer
from sandherd import cli
from sandherd.cli import exit_status
from sandherd.client.terminal_text import write_text

app = typer.Typer()

@app.command()
def command(given: str) -> int:
    {body}

exit_status.build_for = lambda arguments: app
cli.main(["given"])
"""
REFUSED = "raise FileNotFoundError(2, 'No such file or directory', '/none')"
BROKEN = "raise BrokenPipeError(32, 'Broken pipe')"


def outcome(body: str, redirected: str = "") -> subprocess.CompletedProcess[str]:
    """How a command with this body ends."""
    command = ["/bin/sh", "-c", f'exec "$0" -c "$1" {redirected}', sys.executable, COMMAND.format(body=body)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_messages_that_are_not_written_do_not_change_the_exit_status(status: int) -> None:
    """It does not become 120 either, the status of Python if it can't flush output at its end."""
    body = f"write_text('careful', error=True); write_text('careful', error=True); write_text('done'); return {status}"
    done = outcome(body, "2>/dev/full")
    assert (done.returncode, done.stdout) == (status, "done\n")


def test_errors_that_are_not_written_keep_their_exit_status() -> None:
    """The line is lost, and the status is not."""
    assert outcome(REFUSED, "2>/dev/full").returncode == 1
    assert outcome("raise typer.BadParameter('bad')", "2>/dev/full").returncode == 2


def test_output_before_an_error_is_written() -> None:
    """Only what can't be written is dropped."""
    done = outcome(f"write_text('first'); {REFUSED}")
    assert (done.returncode, done.stdout) == (1, "first\n")
    assert done.stderr.startswith("sandherd: /none: No such file or directory")


def test_a_broken_pipe_of_something_else_is_an_error_with_a_line() -> None:
    """It may be a connection's, or a child's."""
    done = outcome(f"write_text('first'); {BROKEN}")
    assert (done.returncode, done.stdout) == (1, "first\n")
    assert done.stderr.startswith("sandherd: Broken pipe")


@pytest.mark.parametrize("body", ["write_text('done')", "print('done', flush=True)", "write_text('done', flush=True)"])
def test_output_without_a_reader_ends_silently(body: str) -> None:
    """The reader may be `head`. The exit status is that of SIGPIPE, also for help that typer prints."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", COMMAND.format(body=body)], stdout=writing, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
