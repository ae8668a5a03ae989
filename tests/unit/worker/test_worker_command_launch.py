"""The launch of a command: one that is cancelled, and what is done before it is executed."""

import asyncio
from pathlib import Path

import pytest

from sandherd_worker import confinement
from sandherd_worker.access.command_launch import CommandLaunch, LaunchedCommand, launch
from sandherd_worker.processes import Reaper


async def test_command_of_a_cancelled_launch_is_killed(
    reaper: Reaper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is killed, because no other part of the worker could end it."""
    begun = asyncio.get_running_loop().create_future()

    async def connect(command: LaunchedCommand) -> None:
        begun.set_result(command)
        await asyncio.Event().wait()

    monkeypatch.setattr(LaunchedCommand, "connect", connect)
    what = CommandLaunch(argv=["/bin/sleep", "600"], environment={}, folder=tmp_path, stdin=None)
    launching = asyncio.create_task(launch(what, reaper))
    command: LaunchedCommand = await begun
    launching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await launching
    assert await command.exit < 0


@pytest.mark.parametrize("rules", [None, 17])
def test_command_is_only_copied_where_it_enters_a_domain(rules: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Landlock rules there is no `preexec_fn`, so a start does not copy the worker's page tables."""
    monkeypatch.setattr(confinement, "_ruleset", lambda: rules)
    assert confinement.entry() is (None if rules is None else confinement.enter)
