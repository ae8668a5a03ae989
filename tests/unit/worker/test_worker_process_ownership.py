"""Ownership of processes: a command's, or the agent's."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from sandherd.process_signals import end
from sandherd_worker.processes import EXEC_VARIABLE, ProcessOwnership, Reaper, descendants

Start = Callable[..., int]
_PR_GET_CHILD_SUBREAPER = 37


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
    await end(lambda: descendants() - before, 0)
    reaper.stop()
    for process in begun:
        process.returncode = 0


async def test_each_command_owns_its_children(start: Start, eventually: Any) -> None:
    """Children of one command are not another's, nor the agent's."""
    families = ProcessOwnership()
    one, two = start("sleep 600 & sleep 600 & wait"), start("sleep 600 & wait")
    agent = start("sleep 600 & wait")
    families.enter("exc-1", one)
    families.enter("exc-2", two)
    await eventually(lambda: (len(families.of("exc-1")), len(families.of("exc-2"))) == (3, 2), "all of them")
    assert one in families.of("exc-1")
    assert two in families.of("exc-2")
    assert agent in families.agents()
    assert families.agents().isdisjoint(families.of("exc-1") | families.of("exc-2"))
    families.remove("exc-1")
    assert one in families.agents()


@pytest.mark.parametrize("escape", ["setsid sleep 600 &", "(sleep 600 &)", "(setsid sh -c 'sleep 600 & wait' &)"])
async def test_process_without_its_parent_is_attributed(start: Start, eventually: Any, escape: str) -> None:
    """A process whose parent has exited is known by its session or its variable."""
    families = ProcessOwnership()
    leader = start(f"{escape}\nsleep 0.05; exit", **{EXEC_VARIABLE: "exc-1"})
    families.enter("exc-1", leader)
    await eventually(lambda: leader not in descendants(), "the end of the one that began it")
    await eventually(lambda: families.of("exc-1"), "what it has left")
    assert families.of("exc-1").isdisjoint(families.agents())


async def test_daemonized_process_without_mark_is_the_agents(start: Start, eventually: Any) -> None:
    """A process that left session and variable behind ends with the agent, or at the latest with the sandbox."""
    families = ProcessOwnership()
    leader = start("env -i setsid sleep 600 & sleep 0.05; exit", **{EXEC_VARIABLE: "exc-1"})
    families.enter("exc-1", leader)
    await eventually(lambda: not families.of("exc-1") and families.agents(), "an orphan of nobody")


async def test_all_processes_are_the_agents_without_commands(start: Start) -> None:
    """An unknown command has no process."""
    families = ProcessOwnership()
    process = start("sleep 600")
    assert process in families.agents()
    assert families.of("exc-1") == set()


async def test_orphans_are_adopted_only_while_they_are_reaped() -> None:
    """A process that reaps no more is no parent of orphans: they would stay, and block the end of their namespace."""
    reaper = Reaper()
    assert not is_subreaper()
    reaper.start()
    assert is_subreaper()
    reaper.stop()
    assert not is_subreaper()


def is_subreaper() -> bool:
    enabled = ctypes.c_int(-1)
    assert ctypes.CDLL(None).prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(enabled), 0, 0, 0) == 0
    return bool(enabled.value)
