"""Whose a process is: a command's, or the agent's."""

import os
import subprocess
from collections.abc import Callable
from signal import SIGKILL
from typing import Any

import pytest

from sandherd_worker.families import Families
from sandherd_worker.processes import EXEC_VARIABLE, Reaper, descendants, send

Start = Callable[..., int]


@pytest.fixture
async def start() -> Any:
    """Starts a shell script in a session of its own and returns its process; at the end nothing of any is left."""
    reaper = Reaper()
    reaper.start()
    before, begun = descendants(), []

    def begin(script: str, **environment: str) -> int:
        process = subprocess.Popen(["/bin/sh", "-c", script], env={**os.environ, **environment}, start_new_session=True)
        begun.append(process)
        reaper.exit_of(process.pid)
        return process.pid

    yield begin
    send(descendants() - before, SIGKILL)
    reaper.collect()
    reaper.stop()
    for process in begun:
        process.returncode = 0


async def test_each_has_its_own(start: Start, eventually: Any) -> None:
    """Children of one are not the other's, nor the agent's."""
    families = Families()
    one, two = start("sleep 600 & sleep 600 & wait"), start("sleep 600 & wait")
    agent = start("sleep 600 & wait")
    families.enter("exc-1", one)
    families.enter("exc-2", two)
    await eventually(lambda: (len(families.of("exc-1")), len(families.of("exc-2"))) == (3, 2), "all of them")
    assert one in families.of("exc-1")
    assert two in families.of("exc-2")
    assert agent in families.agents()
    assert families.agents().isdisjoint(families.of("exc-1") | families.of("exc-2"))
    families.leave("exc-1")
    assert one in families.agents()


@pytest.mark.parametrize("escape", ["setsid sleep 600 &", "(sleep 600 &)", "(setsid sh -c 'sleep 600 & wait' &)"])
async def test_one_that_has_left_its_parent_is_known(start: Start, eventually: Any, escape: str) -> None:
    """By its session, or by the mark that it carries, when its parent is gone."""
    families = Families()
    leader = start(f"{escape}\nsleep 0.05; exit", **{EXEC_VARIABLE: "exc-1"})
    families.enter("exc-1", leader)
    await eventually(lambda: leader not in descendants(), "the end of the one that began it")
    await eventually(lambda: families.of("exc-1"), "what it has left")
    assert families.of("exc-1").isdisjoint(families.agents())


async def test_one_that_leaves_all_behind_is_the_agents(start: Start, eventually: Any) -> None:
    """So that it ends with the agent, or at the latest with the sandbox."""
    families = Families()
    leader = start("env -i setsid sleep 600 & sleep 0.05; exit", **{EXEC_VARIABLE: "exc-1"})
    families.enter("exc-1", leader)
    await eventually(lambda: not families.of("exc-1") and families.agents(), "an orphan of nobody")


async def test_without_commands_all_is_the_agents(start: Start) -> None:
    """And a command that nobody knows has nothing."""
    families = Families()
    process = start("sleep 600")
    assert process in families.agents()
    assert families.of("exc-1") == set()
