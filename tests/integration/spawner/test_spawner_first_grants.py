"""The credential of a warm sandbox's worker is issued by the stored records, not by what a spawner remembers."""

from datetime import timedelta
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from sandherd.bus.connection import Bus
from sandherd.bus.identity.keys import Key, KeyKind
from sandherd.bus.lease import Lease
from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.specs import SandboxLimits
from sandherd.contracts.states import SandboxState, TaskState
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from sandherd.stack.broker import Broker
from sandherd.telemetry.meters import Meters
from spawner.live_state import LiveState
from spawner.pool.filler import Filler
from spawner.pool.pool_decisions import PoolProfile
from spawner.pool.warm_record import WarmState
from spawner.runtimes.contract import WarmPlan
from spawner.sandboxes.fenced_writes import FencedWriter
from spawner.sandboxes.lifecycle_facts import LifecycleTimeouts
from spawner.sandboxes.runtime_actions import RuntimeActions
from spawner.sandboxes.runtime_calls import RuntimeCaller
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.sandbox_record import SandboxRecord, WorkerKey
from spawner.tasks.task_record import TaskRecord
from tests.integration.spawner.scripted.gate import Gate, Traffic
from tests.integration.spawner.scripted.runtime import Doing, Provider, ScriptedRuntime

KEY = Key.new(KeyKind.USER).public


class Held:
    """A lease that is always held."""

    fence = 5
    held = True

    def check(self) -> None:
        pass


class Spawner:
    """The parts of a spawner that create sandboxes. It knows only its own writes: its watch is behind."""

    def __init__(self, bus: Bus, herd: Broker) -> None:
        self.live = LiveState(bus, Meters(CollectorRegistry()))
        self.provider = Provider("process", lambda _: None, lambda: 0.0)
        caller = RuntimeCaller({"process": ScriptedRuntime(self.provider, Gate("a", Traffic()))}, Held(), 60)
        plans = SandboxPlans.of(Settings(), {}, "seed")
        self.acts = RuntimeActions(FencedWriter(self.live, Held()), caller, herd.minter(), plans, LifecycleTimeouts())

    async def assigned(self, **spec: Any) -> None:
        """A task that is assigned to a warm sandbox whose worker's key is recorded."""
        self.provider.prepare(WarmPlan(unit="wrm-1", limits=SandboxLimits()))
        now = self.live.now()
        task = TaskRecord(
            project="p1", task="task-1", life="a" * 32, runtime="process", limits=SandboxLimits(), submitted_at=now,
            state=TaskState.ASSIGNED, sandbox="sbx-1",
            spec=TaskSpec(text="x", harness=CommandHarness(argv=["true"]), **spec),
        )  # fmt: skip
        key = WorkerKey(public_key=KEY, expires_at=now + timedelta(hours=1))
        sandbox = SandboxRecord(
            project="p1", sandbox="sbx-1", task="task-1", runtime="process", limits=SandboxLimits(), unit="wrm-1",
            requested_at=now, keys=(key,),
        )  # fmt: skip
        await self.live.tasks.create(task)
        await self.live.sandboxes.create(sandbox)

    async def spawn(self) -> None:
        """Create the sandbox by what this spawner remembers."""
        held = await self.live.sandboxes.newest("p1.sbx-1")
        assert held is not None
        task = await self.live.newest_task(held.record)
        assert task is not None
        await self.acts.spawn(held, task.record, self.live.now())

    @property
    def granted(self) -> bool:
        """Whether the worker got a credential with its identity."""
        plan = self.provider.boxes["wrm-1"].plan
        assert plan is not None
        return plan.grant is not None


async def test_worker_of_a_running_task_gets_a_credential(herd: Broker) -> None:
    """The worker of a running task gets a credential with its identity."""
    async with herd.bus(Principal.SPAWNER) as bus:
        spawner = Spawner(bus, herd)
        await spawner.assigned()
        await spawner.spawn()
        assert spawner.granted


@pytest.mark.parametrize("what", ["task", "sandbox"])
async def test_what_another_spawner_has_ended_gets_no_credential(herd: Broker, what: str) -> None:
    """The worker of an attempt that another spawner has ended is not admitted, and its agent does not start."""
    async with herd.bus(Principal.SPAWNER) as bus:
        spawner, other = Spawner(bus, herd), LiveState(bus, Meters(CollectorRegistry()))
        await spawner.assigned()
        if what == "task":
            await other.tasks.change("p1.task-1", lambda task, _: task.entering(TaskState.CANCELLED))
        else:
            await other.sandboxes.change("p1.sbx-1", lambda sandbox, _: sandbox.entering(SandboxState.STOPPING))
        await spawner.spawn()
        assert not spawner.granted


async def test_warm_sandbox_without_its_secret_has_failed(herd: Broker) -> None:
    """A warm sandbox without its secret fails like a cold one: it was never created, and the event has the reason."""
    async with herd.bus(Principal.SPAWNER) as bus:
        spawner = Spawner(bus, herd)
        await spawner.assigned(secrets={"TOKEN": "k"})
        await spawner.spawn()
        held = await spawner.live.sandboxes.load("p1.sbx-1")
        assert held is not None
        assert (held.record.state, held.record.keys) == (SandboxState.FAILED, ())
        assert "sandherd secrets set k" in (held.record.error or "")
        assert spawner.provider.boxes["wrm-1"].doing is Doing.WAITING


class Odd(ScriptedRuntime):
    """A plugin whose units have a key for which no credential can be issued."""

    async def prepare(self, plan: WarmPlan) -> str | None:
        await super().prepare(plan)
        return "no key"


async def test_invalid_key_of_a_runtime_is_not_recorded(herd: Broker) -> None:
    """The invalid key of a plugin is not recorded: its worker requests a credential, and nothing is retried forever."""
    async with herd.bus(Principal.SPAWNER) as bus:
        spawner = Spawner(bus, herd)
        runtime = Odd(spawner.provider, Gate("a", Traffic()))
        kind = PoolProfile("quick", "process", SandboxLimits(), 1)
        await Filler(spawner.live, cast("Lease", Held()), {"process": runtime}, (kind,), max_age=60).fill(60)
        (record,) = spawner.live.pool_index.views()
        assert (record.state, record.public_key) == (WarmState.READY, None)
