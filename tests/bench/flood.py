"""The cost of one project's flood for another one: its delay, the time until the sandbox is cut off, and its traces.

On a whole stack, an attacker has the credential of a sandbox's worker in one project. In another project a user runs
`true` repeatedly, and an agent is sent messages. Both are timed while the stack is idle, during the attack, and after
it.
"""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from sandherd.client import Context, Herd
from sandherd.client.herd import new_task, task_spec
from sandherd.contracts.subjects import Principal
from sandherd.stack.broker import Broker
from tests.bench.agents import Arrival, listening_agent
from tests.bench.latency import Latency, latency_of
from tests.bench.recorder import Recorder
from tests.bench.stacks import stack

ATTACKS: Final = {"junk": 5000, "relay": 3000, "events": 200_000}
"""How many messages of each kind: one byte each; approvals and messages to another agent, by turns; valid events."""
CUT_OFF: Final = ("junk", "events")
"""Attacks that exceed a limit. Those of `relay` do not: message-relay denies and rejects what is too much."""
_RUNS: Final = 5
_MESSAGES: Final = 60
_WITHIN: Final = 180.0
_ENDED_WITHIN: Final = 30.0
"""How long after the attack a sandbox is still expected to be cut off."""
_SETTINGS: Final = {"SANDHERD_MAX_SANDBOXES": "12"}


@dataclass(frozen=True)
class Measured:
    """Seconds of `run -- true`, and the latency of messages. `cut_off` is None if the sandbox was not cut off."""

    idle: float
    worst: float
    after: float
    messages_idle: Latency
    messages_during: Latency
    messages_after: Latency
    cut_off: float | None

    @property
    def delay(self) -> float:
        """The number of seconds by which the attack delayed the slowest run of the other project."""
        return max(0.0, self.worst - self.idle)


@dataclass(frozen=True)
class Projects:
    """The clients of the attacker's project and of the other one, on one stack."""

    attacker: Herd
    other: Herd
    broker: Broker
    url: str


async def measure(recorder: Recorder) -> None:
    """Measure all figures of each attack; a run is one attack."""
    async with projects() as at:
        for name in ATTACKS:
            for _ in recorder.each(f"floods.delay_{name}"):
                _record(recorder, name, await measure_attack(at, name))


def _record(recorder: Recorder, name: str, found: Measured) -> None:
    recorder.add(f"floods.delay_{name}", found.delay)
    recorder.add(f"floods.after_{name}", found.after, found.idle)
    recorder.add(f"floods.message_after_{name}", found.messages_after, found.messages_idle)
    recorder.add(f"floods.message_during_{name}", found.messages_during, found.messages_idle)
    if name in CUT_OFF:
        if found.cut_off is None:
            raise AssertionError(f"the sandbox that published {name} was not cut off")
        recorder.add(f"floods.cut_off_{name}", found.cut_off)


@asynccontextmanager
async def projects() -> AsyncIterator[Projects]:
    """A stack with two projects."""
    async with stack(_SETTINGS) as (_, home):
        broker, context = Broker(home), Context.resolve(home=home, environ={})
        credentials = broker.credentials(Principal.CLIENT, project="beta")
        beta = replace(context, credentials=credentials, project="beta")
        async with Herd.connect(context) as attacker, Herd.connect(beta) as other:
            yield Projects(attacker, other, broker, context.nats_url)


async def measure_attack(at: Projects, name: str) -> Measured:
    """Measure one attack, from its own sandbox."""
    async with listening_agent(at.other) as (listener, arrival):
        idle = statistics.median([await _run_true(at.other) for _ in range(_RUNS)][1:])
        messages_idle = await _messages(at.other, listener, arrival)
        task, sandbox = await _sandbox_of(at.attacker)
        stopped = asyncio.create_task(_stopped(at.attacker, sandbox))
        process, begun = await _attack(at, sandbox, name), time.perf_counter()
        sending = asyncio.create_task(_messages(at.other, listener, arrival))
        during = [await _run_true(at.other)]
        while process.returncode is None and len(during) < _RUNS:
            during.append(await _run_true(at.other))
        messages_during = await sending
        await process.wait()
        at_last = await _ended(at.attacker, task, stopped, expected=name in CUT_OFF)
        after = statistics.median([await _run_true(at.other) for _ in range(_RUNS)])
        messages_after = await _messages(at.other, listener, arrival)
    return Measured(
        idle, max(during), after, messages_idle, messages_during, messages_after, at_last and at_last - begun
    )


async def _attack(at: Projects, sandbox: str, name: str) -> asyncio.subprocess.Process:
    credentials = at.broker.credentials(Principal.WORKER, project=at.attacker.project, sandbox=sandbox)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.flood_attack", at.url, str(credentials)),
        *(at.attacker.project, sandbox, name, str(ATTACKS[name])),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    await process.stdout.readline()  # it is connected, and publishes from now on
    return process


async def _ended(herd: Herd, task: str, stopped: "asyncio.Task[float]", *, expected: bool) -> float | None:
    """When the sandbox was cut off; None if it was not, in which case its task is cancelled."""
    await asyncio.wait([stopped], timeout=_ENDED_WITHIN if expected else 0)
    if stopped.done():
        return stopped.result()
    stopped.cancel()
    await herd.cancel(task)
    return None


async def _run_true(herd: Herd) -> float:
    """Seconds from submission to the end of a task that does nothing."""
    task, begun = new_task(), time.perf_counter()
    async with asyncio.timeout(_WITHIN), herd.follow(task=task, fresh=True) as events:
        await herd.submit(task_spec("nothing", ["true"]), task=task)
        async for event in events:
            if event.type in {"task.completed", "task.failed"}:
                assert event.type == "task.completed"
                break
    return time.perf_counter() - begun


async def _messages(herd: Herd, sandbox: str, arrival: Arrival) -> Latency:
    """Seconds from a message's command until its agent has read it, one message after the other."""
    took = []
    for _ in range(_MESSAGES):
        text, begun = f"m{new_task()[5:]}", time.perf_counter()
        message = await herd.send(sandbox, text)
        try:
            took.append(await asyncio.wait_for(arrival(text), _WITHIN) - begun)
        except TimeoutError:
            raise AssertionError(await _missing(herd, sandbox, message)) from None
    return latency_of(took)


async def _missing(herd: Herd, sandbox: str, message: str) -> str:
    """The stored events of a message that did not arrive, and of its sandbox."""
    events = [event.envelope async for event in herd.events(sandbox=sandbox)]
    of_message = [_line(event) for event in events if event["data"].get("message_id") == message]
    last = [_line(event) for event in events[-5:]]
    reconnects = herd.connection.bus.reconnects
    return f"{message} did not arrive: {of_message}; sandbox {sandbox}: {last}; client reconnects: {reconnects}"


def _line(event: dict[str, Any]) -> str:
    return f"{event['type']} {event['time']}"


async def _sandbox_of(herd: Herd) -> tuple[str, str]:
    """Submit a task in the attacker's project; returns its sandbox."""
    task = new_task()
    async with asyncio.timeout(_WITHIN), herd.follow(task=task, fresh=True) as events:
        await herd.submit(task_spec("wait", ["sleep", "600"]), task=task)
        async for event in events:
            if event.type == "agent.started":
                return task, event.subject
    raise AssertionError("it did not start")


async def _stopped(herd: Herd, sandbox: str) -> float:
    """When the end of the sandbox was published; its credentials are revoked by then, or within a second."""
    async with herd.follow(sandbox=sandbox) as events:
        async for event in events:
            if event.type == "sandbox.stopping":
                break
    return time.perf_counter()
