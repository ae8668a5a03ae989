"""The signals that interrupt a command of the administrator."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from sandherd.admin.interruption import interruptible


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signal_cancels_the_work_and_its_handler_is_restored(number: signal.Signals) -> None:
    """Each of the three is an error of the task, which can still end what it has begun."""

    def handler(*_: object) -> None:
        """A handler that is installed before, also if the tests were started with the signal ignored."""

    before = signal.signal(number, handler)

    async def work() -> None:
        with interruptible():
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    try:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(work())
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


async def test_ignored_signal_stays_ignored() -> None:
    """An example is SIGHUP in a command that `nohup` has started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible():
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "module",
    ["typing", "sandherd.lazy_imports", "typer", "sandherd.cli.exit_status", "sandherd.client.terminal_text"],
)
def test_interrupt_while_modules_are_loaded_ends_the_command_silently(module: str) -> None:
    """With the status of an interrupt, and no traceback of the import."""
    program = f"""
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupting())
from sandherd.cli import main
main(["--version"])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
