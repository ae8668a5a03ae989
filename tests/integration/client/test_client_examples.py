"""Each program of docs/herd.md is run as it is shown there, with the real services."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from sandherd.client import Context
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples/herd").glob("*.py"))
SHOWN = {
    "submit": "126410606437752",
    "follow": "task.completed",
    "sandbox": "0 12",
    "files": "one\ntwo",
    "batch": "there is no task",
    "without_asyncio": "completed",
}


async def test_each_example_runs(line: Context) -> None:
    """An example ends with status 0 and without a warning, and prints what it demonstrates."""
    assert EXAMPLES
    for program in EXAMPLES:
        await check_example(program, line)


async def check_example(program: Path, line: Context) -> None:
    """Check one program."""
    place = {"NATS_URL": line.nats_url, "SANDHERD_CREDENTIALS": str(line.credentials), "SANDHERD_HOME": str(line.home)}
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-u", "-X", "faulthandler", "-W", "error", str(program)],
        env=os.environ | place,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    # A program that hangs prints its stacks on SIGABRT.
    hanging = asyncio.get_running_loop().call_later(PATIENCE, process.send_signal, signal.SIGABRT)
    out, err = await process.communicate()
    hanging.cancel()
    assert (process.returncode, err.decode()) == (0, ""), out.decode()
    assert SHOWN[program.stem] in out.decode()


def test_page_has_every_example() -> None:
    """The page has each program word for word, without its docstring, which is the text above it."""
    page = (ROOT / "docs/herd.md").read_text()
    assert EXAMPLES
    for program in EXAMPLES:
        assert program.read_text().partition('"""\n\n')[2] in page, program.name
