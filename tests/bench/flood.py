"""What one project's flood costs another: `python -m tests.bench.flood`.

A whole stack; in one project a sandbox whose worker's credential an attacker has, in another a person who runs `true`
again and again and an agent that is sent messages. Both are timed idle, while the attack goes on, and after it.
"""

import asyncio
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from sandherd.client import Context, Herd
from sandherd.client.herd import new_task, task_spec
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.bench.agents import Arrival, listening_agent

ATTACKS: Final = {
    "junk": ("junk", 5000),
    "valid": ("valid", 200_000),
    "relay": ("relay", 3000),
    "connections": ("connections", 300),
}
_RUNS: Final = 7
_MESSAGES: Final = 60
_WITHIN: Final = 180.0
SETTINGS: Final = {"SANDHERD_MAX_SANDBOXES": "12"}


@dataclass(frozen=True)
class Measured:
    """Seconds of `run -- true`, and the 99th percentile of a message's delivery in milliseconds."""

    idle: float
    first: float
    during_worst: float
    after: float
    ratio: float
    message_idle_p99_ms: float
    message_during_p99_ms: float
    message_after_p99_ms: float
    cut_off_after: float | None


async def run_true(herd: Herd) -> float:
    """Seconds from submission to the end of a task that does nothing."""
    task, begun = new_task(), time.perf_counter()
    async with asyncio.timeout(_WITHIN), herd.follow(task=task, fresh=True) as events:
        await herd.submit(task_spec("nothing", ["true"]), task=task)
        async for event in events:
            if event.type in {"task.completed", "task.failed"}:
                assert event.type == "task.completed"
                break
    return time.perf_counter() - begun


async def messages_p99(herd: Herd, sandbox: str, arrival: Arrival, count: int = _MESSAGES) -> float:
    """Milliseconds from a message's command until its agent has read it, one after the other."""
    took = []
    for _ in range(count):
        text, begun = f"m{new_task()[5:]}", time.perf_counter()
        await herd.send(sandbox, text)
        took.append(await asyncio.wait_for(arrival(text), 60) - begun)
    return statistics.quantiles(took, n=100, method="inclusive")[98] * 1000


async def victim_of(herd: Herd) -> tuple[str, str]:
    """A task in the attacker's project, and its sandbox, whose credential the attacker has."""
    task = new_task()
    async with asyncio.timeout(_WITHIN), herd.follow(task=task, fresh=True) as events:
        await herd.submit(task_spec("wait", ["sleep", "600"]), task=task)
        async for event in events:
            if event.type == "agent.started":
                return task, event.subject
    raise AssertionError("it did not start")


async def measure(attacker: Herd, other: Herd, broker: Broker, url: str, name: str) -> Measured:
    """One attack."""
    kind, count = ATTACKS[name]
    async with listening_agent(other) as (listener, arrival):
        idle = statistics.median([await run_true(other) for _ in range(_RUNS)][1:])
        messages_idle = await messages_p99(other, listener, arrival)
        task, sandbox = await victim_of(attacker)
        credentials = broker.credentials(Principal.WORKER, project=attacker.project, sandbox=sandbox)
        begun = time.perf_counter()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.bench.flood_attack", url, str(credentials)),
            *(attacker.project, sandbox, kind, str(count)),
        )
        ended = asyncio.create_task(_ended(attacker, task, begun))
        sending = asyncio.create_task(messages_p99(other, listener, arrival))
        during = [await run_true(other)]
        while process.returncode is None and len(during) < _RUNS:
            during.append(await run_true(other))
        messages_during = await sending
        await process.wait()
        after = statistics.median([await run_true(other) for _ in range(_RUNS)])
        messages_after = await messages_p99(other, listener, arrival)
        ended.cancel()
        cut = None if not ended.done() or ended.cancelled() else ended.result()
        if cut is None:
            await attacker.cancel(task)
    return Measured(
        idle=round(idle, 2),
        first=round(during[0], 2),
        during_worst=round(max(during), 2),
        after=round(after, 2),
        ratio=round(after / idle, 2),
        message_idle_p99_ms=round(messages_idle, 1),
        message_during_p99_ms=round(messages_during, 1),
        message_after_p99_ms=round(messages_after, 1),
        cut_off_after=None if cut is None else round(cut, 2),
    )


async def _ended(herd: Herd, task: str, begun: float) -> float:
    """When the spawner said that the attacker's task has failed."""
    await herd.wait(task)
    return time.perf_counter() - begun


async def main(names: list[str]) -> None:
    """Each attack on a stack of its own; prints a line of JSON for each."""
    from tests.bench.__main__ import stack

    for name in names or list(ATTACKS):
        async with stack(SETTINGS) as (_, home):
            broker = Broker(home)
            found = Context.resolve(home=home, environ={})
            async with Herd.connect(found) as attacker, Herd.connect(_of(found, broker, "beta")) as other:
                sys.stdout.write(
                    json.dumps({name: asdict(await measure(attacker, other, broker, found.nats_url, name))}) + "\n"
                )
                sys.stdout.flush()


def _of(context: Context, broker: Broker, project: str) -> Context:
    credentials: Path = broker.credentials(Principal.CLIENT, project=project)
    return Context(
        nats_url=context.nats_url,
        credentials=credentials,
        project=project,
        home=context.home,
        toolchains=context.toolchains,
        services=context.services,
        sources=context.sources,
    )


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
