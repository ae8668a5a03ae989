"""Approvals after the loss of a worker, on a whole stack: a decision passes to the next attempt."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from sandherd.client import Herd
from sandherd.contracts.commands import RetryPolicy, TaskSpec
from sandherd.contracts.harnesses import AcpHarness, Approvals
from sandherd.contracts.requests import ApprovalView
from sandherd.contracts.states import ApprovalState, MessageState, TaskState
from tests.faults.conftest import Stack, eventually, worker_pid
from tests.patience import PATIENCE

ECHO = Path(__file__).parents[1] / "drivers" / "scripted" / "echo_driver"

pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module", autouse=True)
def agent(stack: Stack) -> None:
    """The echo driver, which takes the place of an ACP agent."""
    toolchain = stack.home / "toolchains" / "acp"
    python = toolchain / "bin" / "python"
    python.parent.mkdir(parents=True)
    shutil.copytree(ECHO, toolchain / "packages" / "echo_driver")
    packages = '"$(dirname "$0")/../packages"'
    # The worker starts `sandherd_drivers.acp`; this interpreter has another module of that name.
    python.write_text(
        f'#!/bin/sh\nexport PYTHONPATH="$PYTHONPATH":{packages}\nexec {sys.executable} -P -m echo_driver\n'
    )
    python.chmod(0o755)


def task(*lines: str) -> TaskSpec:
    """Submit a task for the echo driver, which requests an approval for every tool; it has two attempts."""
    return TaskSpec(
        text="\n".join(lines),
        harness=AcpHarness(kind="acp", argv=["agent"], approvals=Approvals(otherwise="ask")),
        retry=RetryPolicy(max_attempts=2, first_delay_seconds=3),
    )


async def waiting(herd: Herd, count: int = 1) -> list[ApprovalView]:
    """Wait until this number of approvals waits; returns them."""

    async def look() -> list[ApprovalView] | None:
        found = (await herd.approvals(state=ApprovalState.PENDING)).approvals
        return found if len(found) == count else None

    return await eventually(look)


async def lose(herd: Herd, task: str, sandbox: str, *, known: bool) -> None:
    """Kill the worker; with `known`, wait until the herd knows that."""
    pid = worker_pid(sandbox)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)

    async def next_attempt() -> bool | None:
        return (await herd.task(task)).attempt == 2 or None

    if known:
        await eventually(next_attempt)


async def requested_again(herd: Herd, before: ApprovalView) -> ApprovalView:
    """Wait until the only waiting approval is of another sandbox than before: the list is of stored events."""

    async def look() -> ApprovalView | None:
        [view] = await waiting(herd)
        return view if view.sandbox != before.sandbox else None

    return await eventually(look)


async def published(herd: Herd, sandbox: str) -> list[str]:
    stored = herd.events(sandbox=sandbox, types=["agent.message"])
    return [event.envelope["data"]["content"] async for event in stored]


@pytest.mark.parametrize(
    "known", [True, pytest.param(False, marks=pytest.mark.long)], ids=["when it is known", "at once"]
)
async def test_decision_after_worker_kill_reaches_the_next_attempt(stack: Stack, known: bool) -> None:
    """A decision made after a worker's SIGKILL is delivered to the next attempt, without a new request."""
    async with stack.herd() as herd:
        name = await herd.submit(task("use Bash", "say done"))
        [requested] = await waiting(herd)
        await lose(herd, name, requested.sandbox, known=known)
        delivery = await herd.grant(
            requested.sandbox, requested.approval_id, reason="go on", by="ada", timeout=PATIENCE
        )
        ended = await asyncio.wait_for(herd.wait(name), PATIENCE)
        assert (ended.state, ended.attempt, delivery.state) == (TaskState.COMPLETED, 2, MessageState.ACKNOWLEDGED)
        assert ended.sandbox is not None
        await stack.whole(herd, ended.sandbox)
        _, audit = await stack.whole(herd, requested.sandbox)
        assert audit.missing == 0
        assert await published(herd, ended.sandbox) == ["Bash granted go on", "done"]
        views = [view for view in (await herd.approvals()).approvals if view.task == name]
    assert [(view.state, view.decided_by, view.answer) for view in views] == [
        (ApprovalState.GRANTED, "ada", delivery.message)
    ] * 2
    assert {view.sandbox for view in views} == {requested.sandbox, ended.sandbox}


async def test_pending_approval_is_listed_once_across_attempts(stack: Stack) -> None:
    """An approval that two attempts request is listed once, and a decision on the first one applies."""
    async with stack.herd() as herd:
        name = await herd.submit(task("use Bash"))
        [first] = await waiting(herd)
        await lose(herd, name, first.sandbox, known=True)
        second = await requested_again(herd, first)
        await herd.deny(first.sandbox, first.approval_id, reason="not that", timeout=PATIENCE)
        ended = await asyncio.wait_for(herd.wait(name), PATIENCE)
        assert (ended.state, ended.sandbox) == (TaskState.COMPLETED, second.sandbox)
        await stack.whole(herd, second.sandbox)
        assert await published(herd, second.sandbox) == ["Bash denied not that"]


async def test_used_approval_is_requested_again_by_the_next_attempt(stack: Stack) -> None:
    """An approval that the first attempt has used does not apply to the second, which requests its own."""
    async with stack.herd() as herd:
        name = await herd.submit(task("use Bash", "wait"))
        [first] = await waiting(herd)
        await herd.grant(first.sandbox, first.approval_id, timeout=PATIENCE)
        await lose(herd, name, first.sandbox, known=True)
        await requested_again(herd, first)
        await herd.cancel(name)
        await asyncio.wait_for(herd.wait(name), PATIENCE)
        await waiting(herd, 0)
