"""The validation of an agent's work: how its command ends, and what a cancelled one leaves."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from sandherd.contracts.continuous import Validation
from sandherd_worker.continuous.validation import ValidationContext, Validator
from sandherd_worker.processes import ProcessOwnership, Reaper
from sandherd_worker.redaction import Redactor
from tests.polling import eventually


class BlockedSink:
    """Publishes events, and never finishes with terminal output."""

    def __init__(self) -> None:
        self.began, self.ended = asyncio.Event(), asyncio.Event()

    async def publish(self, data: Any) -> bool:
        return True

    async def show(self, text: str) -> None:
        self.began.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()


class OpenSink(BlockedSink):
    """Publishes everything."""

    async def show(self, text: str) -> None:
        """Publish terminal output."""


def validator(command: str, folder: Path, sink: Any, reaper: Reaper, seconds: int = 60) -> Validator:
    context = ValidationContext(
        work_dir=folder,
        environment={"PATH": os.environ["PATH"]},
        sink=sink,
        redactor=Redactor(),
        reaper=reaper,
        ownership=ProcessOwnership(),
    )
    return Validator(Validation(command=command, timeout_seconds=seconds), context)


@pytest.mark.parametrize(
    ("command", "outcome", "output"),
    [
        ("echo fine", "ok", "fine\n"),
        ("echo bad; exit 3", "failed", "bad\n"),
    ],
)
async def test_exit_status_decides(command: str, outcome: str, output: str, tmp_path: Path, reaper: Reaper) -> None:
    """The result has the output of the command."""
    result = await validator(command, tmp_path, OpenSink(), reaper).run(1, asyncio.Event())
    assert (result.outcome, result.output, result.passed) == (outcome, output, outcome == "ok")


async def test_command_that_takes_too_long_fails(tmp_path: Path, reaper: Reaper) -> None:
    """Its outcome is not that of a command that has failed."""
    result = await validator("sleep 600", tmp_path, OpenSink(), reaper, seconds=1).run(1, asyncio.Event())
    assert (result.outcome, result.passed) == ("timed_out", False)


@pytest.mark.filterwarnings("ignore:.*Popen.__del__:pytest.PytestUnraisableExceptionWarning")  # not waited for
async def test_cancelled_validation_leaves_nothing(tmp_path: Path, reaper: Reaper) -> None:
    """Its output is not being published any more, and its command has ended."""
    sink = BlockedSink()
    command = f"echo $$ > {tmp_path}/pid; echo x; exec sleep 600"
    run = asyncio.ensure_future(validator(command, tmp_path, sink, reaper).run(1, asyncio.Event()))
    await sink.began.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert sink.ended.is_set()
    pid = int((tmp_path / "pid").read_text())
    await eventually(lambda: not Path(f"/proc/{pid}").exists())  # the reaper collects it after SIGCHLD
