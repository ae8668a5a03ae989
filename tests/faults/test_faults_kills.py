"""Kill -9 of any one process, at any moment: nothing said is lost, nothing is stored twice, and everything ends."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable

import pytest

from sandherd.client import Herd, HerdError
from sandherd.client.herd import new_task
from sandherd.contracts.states import SandboxState, TaskState
from tests.faults.conftest import Stack, eventually, talk, worker_pid
from tests.patience import PATIENCE

EVENTS = 2000
MOMENTS = (250, 1000, 1750)
AHEAD = 200
"""How much further the agent may be when what was heard is acted upon: it must not be done by then."""

pytestmark = [pytest.mark.timeout(300)]


async def run(
    herd: Herd, moments: tuple[int, ...], strike: Callable[[str, int], Awaitable[None]]
) -> tuple[str, str, int]:
    """Run a task of `EVENTS` events and strike at those moments. Returns the task, its sandbox, and what was heard.

    `strike` is given the sandbox and where its agent holds until it is allowed to go on.
    """
    task, left, heard, sandbox = new_task(), deque(moments), 0, ""
    async with asyncio.timeout(PATIENCE), herd.follow(task=task, fresh=True) as events:
        await herd.submit(talk(EVENTS, holds=[moment + AHEAD for moment in moments]), task=task)
        async for event in events:
            sandbox = event.sandboxid or sandbox
            heard += event.type == "agent.message"
            if left and heard >= left[0]:
                await strike(sandbox, left.popleft() + AHEAD)
    assert not left, f"only {len(moments) - len(left)} of the strikes were made"
    return task, sandbox, heard


async def numbers_said(herd: Herd, sandbox: str) -> list[int]:
    """What the agent said, by its place in the source's sequence, as it is stored."""
    stored = [event.envelope async for event in herd.events(sandbox=sandbox, types=["agent.message"])]
    return [int(event["data"]["content"]) for event in sorted(stored, key=lambda event: event["sequence"])]


async def gone(sandbox: str) -> bool | None:
    """Whether no worker of the sandbox lives."""
    return worker_pid(sandbox) is None or None


@pytest.mark.parametrize("victim", ["nats", "postgres", "spawner", "event-ingest", "monitor", "message-relay"])
async def test_a_killed_part_costs_nothing(stack: Stack, victim: str) -> None:
    """Each of 2,000 events is stored once, in order, without a gap, though a part was killed three times meanwhile."""

    async def strike(sandbox: str, hold: int) -> None:
        await stack.kill(victim)
        stack.allow(sandbox, hold)

    async with stack.herd() as herd:
        task, sandbox, _ = await run(herd, MOMENTS, strike)
        view, audit = await stack.whole(herd, sandbox)
        assert (await eventually(lambda: herd.task(task))).state is TaskState.COMPLETED
        assert await numbers_said(herd, sandbox) == list(range(1, EVENTS + 1))
        assert view.state is SandboxState.TERMINATED
        assert audit.missing == 0
        assert audit.dead == 0
        await eventually(lambda: gone(sandbox))
        await stack.cleared(sandbox)


@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_worker_loses_nothing_that_it_said(stack: Stack, moment: int) -> None:
    """What the agent said before its worker was killed is stored once, without a gap; its task fails, saying why."""

    async def strike(sandbox: str, _hold: int) -> None:
        pid = worker_pid(sandbox)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    async with stack.herd() as herd:
        task, sandbox, heard = await run(herd, (moment,), strike)
        view, audit = await stack.whole(herd, sandbox)
        ended = await herd.task(task)
        said = await numbers_said(herd, sandbox)
        assert said == list(range(1, len(said) + 1))
        assert len(said) >= heard >= moment
        assert (ended.state, ended.error_type) == (TaskState.FAILED, "worker_lost")
        assert view.state is SandboxState.TERMINATED
        assert audit.missing == 0
        await stack.cleared(sandbox)


async def test_a_task_runs_without_a_database(stack: Stack) -> None:
    """With Postgres gone a task runs to its end and is answered from the live buckets; later the history is whole."""
    control = stack.home / "postgres" / "data" / "global" / "pg_control"
    away = control.with_name("pg_control.away")
    async with stack.herd() as herd:
        control.rename(away)  # without it Postgres does not start, however often the supervisor tries
        try:
            await stack.kill("postgres")
            task = await herd.submit(talk(200, 0.01))
            ended = await asyncio.wait_for(herd.wait(task), PATIENCE)
            assert ended.state is TaskState.COMPLETED
            assert task in {found.task for found in (await herd.tasks()).items}
            with pytest.raises(HerdError):
                await herd.audit()
        finally:
            away.rename(control)
        assert ended.sandbox is not None
        _, audit = await stack.whole(herd, ended.sandbox)
        assert audit.missing == 0
        assert await numbers_said(herd, ended.sandbox) == list(range(1, 201))
