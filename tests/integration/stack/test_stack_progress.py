"""Commands for the local stack show their current step on a terminal."""

import asyncio
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from sandherd.stack import down
from tests.preloaded_cli import preloaded_python
from tests.terminals import ERASED, left_on_screen, on_terminal

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

PROGRAM = """
from sandherd.cli import status_line, main
status_line.INTERVAL_SECONDS = 0.005
status_line.StatusLine.__init__.__kwdefaults__["quiet"] = 0
main()
"""
"""`sandherd` that shows each step from its beginning, however quickly it ends."""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder for a home and a backup; the stack is ended."""
    found = Path(mkdtemp(prefix="steps-"))
    found.chmod(0o755)
    try:
        yield found
    finally:
        asyncio.run(down(found / "home"))
        shutil.rmtree(found, ignore_errors=True)


async def test_long_commands_show_their_steps_on_a_terminal_only(place: Path) -> None:
    """Each line is erased at the end, so that the screen has the same result as a pipe."""
    program = place / "shown.py"
    program.write_text(PROGRAM)

    async def start(*words: str, **streams: Any) -> asyncio.subprocess.Process:
        environ = {"PATH": os.environ["PATH"], "SANDHERD_HOME": str(place / "home"), "NO_COLOR": "1"}
        command = [str(preloaded_python()), str(program), *words]
        return await asyncio.create_subprocess_exec(*command, env=environ, **streams)

    for words, step, result in (
        (["up"], "started; waiting until ready", "ready "),
        (["backup", str(place / "saved")], "stopping the services", "history"),
        (["down"], "stopping gateway", "stopped "),
    ):
        status, shown = await on_terminal(start, *words)
        assert status == 0, shown
        assert step in shown, shown
        assert ERASED in shown
        left = left_on_screen(shown)
        assert left.lstrip().startswith(result if words != ["backup", str(place / "saved")] else "STREAM"), left
        assert step not in left
        assert result in left
    process = await start("up", stdout=PIPE, stderr=PIPE)
    out, error = await process.communicate()
    assert (process.returncode, error) == (0, b"")
    assert out.startswith(b"ready ")
