"""The end of a history: with one live spawner, and providers that reply, everything ends."""

from datetime import datetime, timedelta
from typing import Final

from sandherd.contracts.commands import SubmitTask
from sandherd.contracts.failures import is_transient
from sandherd.contracts.states import SANDBOX_ENDING, TASK_ENDED, SandboxState, TaskState
from spawner.pool.warm_record import WarmState
from spawner.sandboxes.sandbox_record import SandboxRecord
from spawner.tasks.task_record import TaskRecord
from tests.integration.spawner.scripted.gate import Fate
from tests.integration.spawner.scripted.instance import WARM, Instance
from tests.integration.spawner.scripted.runtime import Box, Doing, Provider
from tests.integration.spawner.scripted.workers import OUTCOMES
from tests.integration.spawner.scripted.world import World

_PATIENCE: Final = timedelta(minutes=1)
"""How long a sandbox may exist after its time: the last events of its agent may be on their way."""
_ROUNDS: Final = 150
_PASSES: Final = 40
_FIRST_LEAP: Final = 3.0
_LONGEST_LEAP: Final = 6 * 3600.0


async def settle(world: World) -> None:
    """Let everything end, and check the invariants that hold then. Raises `BrokenRuleError`."""
    for provider in world.providers.values():
        provider.faults.clear()
        while provider.late:
            provider.catch_up()
    for instance in list(world.instances):
        instance.gate.thaw_all()
        instance.lags = False
    await world.still()
    leader = world.spawner(0)
    assert leader is not None
    leap, begun = _FIRST_LEAP, world.now()
    for _ in range(_ROUNDS):
        await until_still(world, leader)
        check_now(world, begun)
        if is_over(world):
            break
        world.pass_time(leap)
        leap = min(leap * 2.5, _LONGEST_LEAP)
    await world.sweep(leader)  # what was published after the last one is removed from its record
    check_end(world)


async def go_on(world: World, spawner: Instance, *, agents_end: bool, fate: Fate | None = None) -> None:
    """Do one round of everything that a spawner and its workers do, as far as the spawner gets."""
    spawner.gate.destine(fate)
    for waiting in list(world.waiting):
        await world.deliver(waiting, spawner)
    for event in list(world.waiting_events):
        await world.receive(event, spawner)
    await world.tick(spawner)
    await world.sweep(spawner)
    for _, box in world.boxes():
        await world.join(box, spawner)
        if agents_end:
            world.workers.agent_ends(box, OUTCOMES[0], published=True)
    spawner.gate.destine(None)


async def until_still(world: World, leader: Instance) -> None:
    """Do rounds until nothing changes any more."""
    for _ in range(_PASSES):
        before = _mark(world)
        await go_on(world, leader, agents_end=True)
        if _mark(world) == before:
            return
    world.journal.broken.append("something changes for ever")
    world.journal.check()


def _mark(world: World) -> tuple[int, ...]:
    doings = tuple(hash((box.unit, box.doing, box.alive, box.runs)) for _, box in world.boxes())
    return (len(world.journal.writes), len(world.received), len(world.waiting), len(world.waiting_events), *doings)


def is_over(world: World) -> bool:
    """Whether nothing is left to do."""
    tasks = all(task.ended for task in world.journal.tasks.values())
    return tasks and not any(world.journal.live()) and not left(world) and not world.waiting


def left(world: World) -> list[tuple[Provider, Box]]:
    """The boxes of providers, without as many waiting ones as the pool has to hold."""
    pooled = {record.unit for record in world.journal.pool.values() if record.state is WarmState.READY}
    waiting = [box for _, box in world.boxes() if box.doing is Doing.WAITING and box.alive and box.unit in pooled]
    return [(provider, box) for provider, box in world.boxes() if box not in waiting[:WARM]]


def check_now(world: World, begun: datetime) -> None:
    """Check that no sandbox outlives its task or its time, and that none is frozen that runs, after its spawner's turn.

    `begun` is the time since which a spawner leads without interruption: without one, deadlines are not enforced.
    """
    now = world.now()
    frozen = {box.unit for _, box in world.boxes() if box.alive and box.paused}
    for sandbox in world.journal.live():
        if sandbox.state is SandboxState.RUNNING and sandbox.runtime_unit in frozen:
            world.journal.broken.append(f"{sandbox.key} stands still though it runs")
        why = _should_end(world, sandbox, now, begun)
        if why and sandbox.state not in SANDBOX_ENDING:
            world.journal.broken.append(f"{sandbox.key} is {sandbox.state} though {why}")
    world.journal.check()


def _should_end(world: World, sandbox: SandboxRecord, now: datetime, begun: datetime) -> str | None:
    if sandbox.expires_at and max(sandbox.expires_at, begun) + _PATIENCE < now:
        return "its time is over"
    if sandbox.task_key is None:
        return None
    task = world.journal.tasks.get(sandbox.task_key)
    if task is None:
        return "there is no such task"
    if task.sandbox != sandbox.sandbox and task.attempt != sandbox.attempt:
        return "its attempt is over"
    lingers = (now - task.ended_at).total_seconds() < task.spec.linger_seconds if task.ended_at else True
    return f"its task is {task.state}" if task.state in TASK_ENDED and not lingers else None


def check_end(world: World) -> None:
    """Check that everything has ended as it should have, and that all events are published."""
    journal = world.journal
    for task in journal.tasks.values():
        if not task.ended:
            journal.broken.append(f"{task.key} is forgotten: {task.state}, attempt {task.attempt}")
        else:
            _check_outcome(world, task)
    journal.broken += [f"{sandbox.key} is forgotten: {sandbox.state}" for sandbox in journal.live()]
    journal.broken += [f"{box.unit} is left at {provider.name}" for provider, box in left(world)]
    journal.broken += [f"{waiting.command.type} is never done" for waiting in world.waiting]
    claimed = [record.unit for record in journal.pool.values() if record.state is WarmState.CLAIMED]
    journal.broken += [f"{unit} of the pool is claimed and nobody's" for unit in claimed]
    _check_submitted(world)
    _check_revoked(world)
    journal.check()
    journal.check_events()


def _check_outcome(world: World, task: TaskRecord) -> None:
    """Check that the task has ended like its last attempt, and had no more attempts than it may have."""
    came_to = world.workers.outcomes.get(task.sandbox or "")
    if task.state is TaskState.COMPLETED and came_to != "agent.completed":
        world.journal.broken.append(f"{task.key} is completed, but its last agent came to {came_to}")
    if task.state is TaskState.FAILED and came_to == "agent.completed" and task.error_type == "exit_status":
        world.journal.broken.append(f"{task.key} has failed, but its last agent completed it")
    again = is_transient(task.error_type or "", task.spec.retry.also) and task.attempt < task.max_attempts
    if task.state is TaskState.FAILED and again:
        world.journal.broken.append(f"{task.key} was not tried again: {task.error_type}, {task.attempt}")


def _check_submitted(world: World) -> None:
    """Check that every submitted task exists, existed, or was refused."""
    refused = {source.split("/")[3] for source, events in world.journal.published.items() for event in events.values()
               if event["type"] == "task.rejected"}  # fmt: skip
    for command in world.given:
        if isinstance(command.data, SubmitTask):
            key = f"{command.project}.{command.data.task}"
            known = key in world.journal.tasks or key in world.journal.past_tasks
            if not known and command.data.task not in refused:
                world.journal.broken.append(f"{key} is forgotten without a word")


def _check_revoked(world: World) -> None:
    """Check that no key of an ended sandbox is valid, unless it has expired."""
    now = world.now()
    for public_key, (sandbox, until) in world.journal.granted.items():
        record = world.journal.sandboxes.get(sandbox)
        if (record is None or record.ended) and until > now and public_key not in world.revoked:
            world.journal.broken.append(f"{sandbox} has ended, and its key {public_key} is good")
