"""How long it takes from `submit` to `agent.started` on a stack: with an empty queue, a long one, and a warm pool.

The long queue has a thousand tasks of another project that wait for capacity; the figure is how they delay others.
"""

import asyncio
import time
from pathlib import Path
from typing import Final

from nats.aio.msg import Msg

from sandherd.client import Context, Herd
from sandherd.client.herd import new_task
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.subjects import PREFIX
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack
from tests.bench.submit_latency import measure_by_hand, measure_submit

CROWD: Final = "crowd"
WARM: Final = "warm"
SETTINGS: Final = {
    "SANDHERD_PROJECT_LIMITS": f"{{{CROWD}: 0}}",
    "SANDHERD_PROFILES": f"{{{WARM}: {{warm: 2}}}}",
}
"""The settings of the stack: the crowd's tasks wait forever, and the pool has two started sandboxes of the profile."""
WITHIN: Final = 60.0
_REFILLED: Final = 1.0
"""Seconds after which a pool is full again, and the earlier sandbox is removed."""
_AT_MOST: Final = 200
_AT_ONCE: Final = 100


async def measure(recorder: Recorder) -> None:
    """Measure a stack with defaults, beside the same worker started by hand; in each run, a stack with `SETTINGS`."""
    async with stack() as (herd, _):
        for _ in recorder.each("spawn.start"):
            recorder.add("spawn.start", await measure_submit(herd), await measure_by_hand())
    for run in recorder.each("spawn.start_empty"):
        async with stack(SETTINGS) as (herd, home):
            await _measure_settings(recorder, run, herd, home)


async def _measure_settings(recorder: Recorder, run: int, herd: Herd, home: Path) -> None:
    empty = await measure_start(herd)
    recorder.add("spawn.start_empty", empty, await measure_by_hand())
    recorder.begin("spawn.warm", run)
    recorder.add("spawn.warm", await measure_start(herd, profile=WARM), empty)
    recorder.begin("spawn.warm_full", run)
    recorder.add("spawn.warm_full", await measure_start(herd, profile=WARM, pause=_REFILLED), empty)
    recorder.begin("spawn.start_1000", run)
    await crowd_in(home)
    recorder.add("spawn.start_1000", await measure_start(herd), empty)


async def measure_start(herd: Herd, *, count: int = 8, profile: str | None = None, pause: float = 0.0) -> Latency:
    """Submit one task after the other, each to the end of its sandbox; the time is that to `agent.started`.

    Without a pause (in seconds), a task starts while the earlier sandbox is removed and the pool is refilled.
    """
    took = []
    for number in range(min(count, _AT_MOST) + 1):
        await asyncio.sleep(pause)
        seconds = await _start(herd, profile)
        if number:  # the first one warms the file cache
            took.append(seconds)
    return latency_of(took)


async def _start(herd: Herd, profile: str | None) -> float:
    task, took = new_task(), 0.0
    spec = TaskSpec(text="nothing", harness=CommandHarness(argv=["true"]), profile=profile)
    async with asyncio.timeout(WITHIN), herd.follow(task=task, fresh=True) as events:
        begun = time.perf_counter()
        await herd.submit(spec, task=task)
        async for event in events:
            if event.type == "agent.started":
                took = time.perf_counter() - begun
    return took


async def crowd_in(home: Path, count: int = 1000) -> None:
    """Submit this number of tasks of the project `crowd`; returns when all of them wait."""
    async with Herd.connect(Context.resolve(home=home, environ={"SANDHERD_PROJECT": CROWD})) as crowd:
        await _fill(crowd, count)


async def _fill(herd: Herd, count: int) -> None:
    waiting, all_wait = set[str](), asyncio.Event()

    async def on_submitted(msg: Msg) -> None:
        waiting.add(msg.subject)
        if len(waiting) == count:
            all_wait.set()

    bus = herd.connection.bus
    subscription = await bus.client.subscribe(f"{PREFIX}.event.{CROWD}.*.task.submitted", cb=on_submitted)
    await bus.client.flush()
    spec = TaskSpec(text="nothing", harness=CommandHarness(argv=["true"]), priority="critical")
    for start in range(0, count, _AT_ONCE):
        await asyncio.gather(*(herd.submit(spec, task=f"task-{start + number}") for number in range(_AT_ONCE)))
    async with asyncio.timeout(WITHIN):
        await all_wait.wait()
    await subscription.unsubscribe()
