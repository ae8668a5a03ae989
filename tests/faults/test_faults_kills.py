"""SIGKILL of any process at any time: no event is lost or stored twice, and everything ends."""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import pytest

from sandherd.client import Herd, HerdError
from sandherd.client.herd import new_task
from sandherd.contracts.states import SandboxState, TaskState
from tests.faults.conftest import Stack, counting_task, eventually, worker_pid
from tests.patience import PATIENCE

EVENTS = 1000
MOMENTS = (125, 500, 875)
COMPONENTS = ("nats", "postgres", "spawner", "event-ingest", "monitor", "message-relay")
AHEAD = 100
"""How many messages the agent may be ahead of the follower when a fault is injected: it must still be running."""

pytestmark = [pytest.mark.timeout(900)]


async def run(
    herd: Herd, moments: tuple[int, ...], inject_fault: Callable[[str, int], Awaitable[None]]
) -> tuple[str, str, int]:
    """Run a task of `EVENTS` events with a fault at each message. Returns task, sandbox and received messages.

    `inject_fault` gets the sandbox and the message number at which its agent waits until it may continue.
    """
    task, left, received, sandbox = new_task(), deque(moments), 0, ""
    async with asyncio.timeout(PATIENCE), herd.follow(task=task, fresh=True) as events:
        await herd.submit(counting_task(EVENTS, holds=[moment + AHEAD for moment in moments]), task=task)
        async for event in events:
            sandbox = event.sandboxid or sandbox
            received += event.type == "agent.message"
            if left and received >= left[0]:
                await inject_fault(sandbox, left.popleft() + AHEAD)
    assert not left, f"only {len(moments) - len(left)} of the faults were injected"
    return task, sandbox, received


async def published_numbers(herd: Herd, sandbox: str) -> list[int]:
    """The stored message numbers of the agent, in the order of the source's sequence."""
    stored = [event.envelope async for event in herd.events(sandbox=sandbox, types=["agent.message"])]
    return [int(event["data"]["content"]) for event in sorted(stored, key=lambda event: event["sequence"])]


async def worker_has_ended(sandbox: str) -> bool | None:
    """Whether the sandbox has no living worker."""
    return worker_pid(sandbox) is None or None


async def test_killing_each_component_loses_no_event(stack: Stack) -> None:
    """Each of 1,000 events is stored once, in order, without a gap, while each component is killed."""
    await kill_while_a_task_runs(stack, COMPONENTS, tuple(range(100, 1000, 150)))


@pytest.mark.parametrize("victim", COMPONENTS)
async def test_killing_a_component_loses_no_event(stack: Stack, victim: str) -> None:
    """Each of 1,000 events is stored once, in order, without a gap, while one component is killed three times."""
    await kill_while_a_task_runs(stack, [victim] * len(MOMENTS), MOMENTS)


async def kill_while_a_task_runs(stack: Stack, victims: Sequence[str], moments: tuple[int, ...]) -> None:
    """Kill a component at each of these messages, and check the history of the task."""
    left = iter(victims)

    async def inject_fault(sandbox: str, hold: int) -> None:
        await stack.kill(next(left))
        stack.allow(sandbox, hold)

    async with stack.herd() as herd:
        task, sandbox, _ = await run(herd, moments, inject_fault)
        view, audit = await stack.whole(herd, sandbox)
        assert (await eventually(lambda: herd.task(task))).state is TaskState.COMPLETED
        assert await published_numbers(herd, sandbox) == list(range(1, EVENTS + 1))
        assert view.state is SandboxState.TERMINATED
        assert audit.missing == 0
        assert audit.dead == 0
        await eventually(lambda: worker_has_ended(sandbox))
        await stack.cleared(sandbox)


@pytest.mark.parametrize(
    "moment", [MOMENTS[1], *(pytest.param(moment, marks=pytest.mark.long) for moment in (MOMENTS[0], MOMENTS[2]))]
)
async def test_killing_a_worker_loses_no_published_event(stack: Stack, moment: int) -> None:
    """The events of an agent whose worker is killed are stored once without a gap; its task fails with the reason."""

    async def inject_fault(sandbox: str, _hold: int) -> None:
        pid = worker_pid(sandbox)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    async with stack.herd() as herd:
        task, sandbox, received = await run(herd, (moment,), inject_fault)
        view, audit = await stack.whole(herd, sandbox)
        ended = await herd.task(task)
        numbers = await published_numbers(herd, sandbox)
        assert numbers == list(range(1, len(numbers) + 1))
        assert len(numbers) >= received >= moment
        assert (ended.state, ended.error_type) == (TaskState.FAILED, "worker_lost")
        assert view.state is SandboxState.TERMINATED
        assert audit.missing == 0
        await stack.cleared(sandbox)


async def test_task_runs_without_a_database(stack: Stack) -> None:
    """With Postgres down a task completes and is shown from the live buckets; later the history is complete."""
    control = stack.home / "postgres" / "data" / "global" / "pg_control"
    renamed_control = control.with_name("pg_control.away")
    async with stack.herd() as herd:
        control.rename(renamed_control)  # without it Postgres does not start, however often the supervisor tries
        try:
            await stack.kill("postgres")
            task = await herd.submit(counting_task(200, 0.01))
            ended = await asyncio.wait_for(herd.wait(task), PATIENCE)
            assert ended.state is TaskState.COMPLETED
            assert task in {found.task for found in (await herd.tasks()).items}
            with pytest.raises(HerdError):
                await herd.audit()
        finally:
            renamed_control.rename(control)
        assert ended.sandbox is not None
        _, audit = await stack.whole(herd, ended.sandbox)
        assert audit.missing == 0
        assert await published_numbers(herd, ended.sandbox) == list(range(1, 201))
