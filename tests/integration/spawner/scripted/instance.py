"""One spawner, composed as the program is, on the real broker; its runtimes, leases and clock are scripted."""

import asyncio
from collections.abc import Coroutine
from datetime import datetime
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast
from unittest.mock import patch

from nats.js.kv import KeyValue

import spawner.main
from sandherd.bus.connection import Bus
from sandherd.bus.identity.revocation import Revoker
from sandherd.bus.lease import Lease, LeaseLostError
from sandherd.contracts.requests import CredentialGrant, GetCredential, Profile, Prune
from sandherd.service.service import IncomingRequest, Service
from sandherd.settings import Settings
from spawner.parts import SpawnerOptions
from spawner.pool.filler import Filler
from spawner.records.base_record import StoreUnavailableError
from spawner.runtimes.contract import Runtime
from spawner.sandboxes.gauges import SpawnerGauges
from spawner.sandboxes.quarantine import Quarantine
from spawner.sandboxes.reconciler import FOR_NOW, SandboxReconciler
from spawner.sandboxes.sweeper import Sweeper
from spawner.tasks.scheduler import Scheduler
from tests.integration.spawner.scripted.broker import gated
from tests.integration.spawner.scripted.gate import Died, Gate
from tests.integration.spawner.scripted.journal import Write
from tests.integration.spawner.scripted.lease import ScriptedLease
from tests.integration.spawner.scripted.runtime import ScriptedRuntime

if TYPE_CHECKING:
    from tests.integration.spawner.scripted.world import World

WARM: Final = 1
"""The number of sandboxes of the profile `quick` in the pool."""
SETTINGS: Final = Settings(
    max_sandboxes=3,
    max_sandboxes_per_project=2,
    runtime_limits={"docker": 1},
    runtime="process",
    profiles={"quick": Profile(warm=WARM)},
    orphan_grace=60,
    keep_ended=7200,
    max_age=20_000,
    max_ttl=40_000,
)
_PATIENCE: Final = 60.0


class ScriptedSpawner(spawner.main.Spawner):
    """The program's composition, with leases of the scripted world."""

    def __init__(self, world: "World", gate: Gate) -> None:
        self._world = world
        self._gate = gate
        service = SimpleNamespace(
            settings=SETTINGS,
            bus=gated(world.stage.bus, gate, world.journal),
            meters=world.stage.meters,
            health=SimpleNamespace(add=lambda _name, _problem: None),
            examining=SimpleNamespace(add=lambda _kind, _problems: None),
        )

        async def no_runtimes(_settings: Settings) -> list[Runtime]:
            return []

        super().__init__(cast("Service", service), world.stage.keys, SpawnerOptions(no_runtimes, world.now, 1.0))
        self._make()

    def _lease(self, key: str) -> Lease:
        return cast("Lease", ScriptedLease(self._world.leases, key, self._gate))

    def _make(self) -> None:
        runtimes: dict[str, Runtime] = {
            name: ScriptedRuntime(provider, self._gate) for name, provider in self._world.providers.items()
        }
        with patch.object(spawner.main, "event_barrier", lambda _bus: self._world.settled):
            core = self._core(runtimes, cast("Revoker", self._world.revoker(self._gate)))
        self._open_for_requests(core)
        self.core = core
        self.parts = self._parts
        self.schedule_lease = self._lease(spawner.main.SCHEDULER_LEASE)
        self.scheduler = Scheduler(
            core.live, core.queue, self.schedule_lease, admission=core.admission, new_record=core.pool.new_record,
            assigned=core.reconciler.wake, settled=self._world.settled, interval=1.0,
        )  # fmt: skip
        self.sweeper = Sweeper(
            core.live, core.lease, core.reconciler, collector=self._orphan_collector(core),
            quarantine=Quarantine(core.live, core.reconciler), runtimes=runtimes,
            gauges=SpawnerGauges(core.live, runtimes, SETTINGS.max_sandboxes),
        )  # fmt: skip
        self.filler = Filler(core.live, core.lease, runtimes, core.pool.kinds, max_age=SETTINGS.max_age)


class Instance:
    """A spawner, and its tasks that are in progress."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.gate = Gate(name, world.traffic)
        self.lags = False
        """Whether its watch is behind: it then knows only its own writes."""
        self._world = world
        self._fed = 0
        self._going: set[asyncio.Task[None]] = set()
        self._spawner = ScriptedSpawner(world, self.gate)
        self.parts = self._spawner.parts
        live = self._spawner.core.live
        self._indexes: dict[str, Any] = {
            "tasks": live.task_index, "sandboxes": live.sandbox_index, "pool": live.pool_index,
            "projects": live.project_index,
        }  # fmt: skip
        for bucket, index in self._indexes.items():
            index._seen = world.stage.floors[bucket]
            index.complete.set()
            index.catch_up = self._catch_up
        # The clock is the history's: nothing waits by the real clock.
        self._spawner.core.admission._patience = 0.0
        self._watch(self._spawner.core.reconciler)
        self.catch_up()

    def _watch(self, keeper: SandboxReconciler) -> None:
        """Record in the history an unexpected error of a sandbox's steps."""
        lead = keeper._steps.run

        async def watched(key: str) -> datetime | None:
            try:
                return await lead(key)
            except (*FOR_NOW, LeaseLostError):
                raise
            except Exception as error:  # noted for the history, and raised again
                self._world.unforeseen(f"leading {key}", error)
                raise

        keeper._steps = cast("Any", SimpleNamespace(run=watched))

    # --- what it does --------------------------------------------------------------------------------------------

    async def tick(self) -> None:
        """Do what the scheduler does each time it is woken."""
        scheduler = self._spawner.scheduler
        await scheduler.tick()
        if scheduler._attempts_overdue.is_set():
            scheduler._attempts_overdue.clear()
            await scheduler._reaper.end_overdue_attempts(scheduler._fenced_change(scheduler._fence))

    async def sweep(self) -> None:
        """Clear the outboxes, sweep (which wakes the keeper of every live sandbox), and fill the pool."""
        for store in (self._spawner.core.live.tasks, self._spawner.core.live.sandboxes):
            for key in list(store._outboxes._published):
                await store._clear(key)
        await self._spawner.sweeper.sweep(SETTINGS.keep_ended)
        await self._spawner.filler.fill(_PATIENCE)

    async def grant(self, requested: IncomingRequest[GetCredential]) -> CredentialGrant:
        """Reply to a worker."""
        return cast("CredentialGrant", await self.parts.answers[GetCredential](requested))

    async def prune(self) -> None:
        """Reply to an operator who requests that all orphans are removed now."""
        await self.parts.answers[Prune](IncomingRequest(Prune(now=True), {"project": "fleet"}))

    def take_schedule(self) -> None:
        """Give this spawner the scheduler's lease."""
        cast("Any", self._spawner.schedule_lease).take()

    def take_sweep(self) -> None:
        """Give this spawner the sweep's lease."""
        cast("Any", self._spawner.core.lease).take()

    # --- that it does it -----------------------------------------------------------------------------------------

    @property
    def works(self) -> bool:
        """Whether it can do something: it is neither killed nor stopped."""
        return not self.gate.dead and not self.gate.stopped

    async def _catch_up(self, _bus: Bus) -> None:
        if self.lags:
            raise StoreUnavailableError("its watch is behind")
        self.catch_up()

    def catch_up(self) -> None:
        """Receive every write since the last time, as a watch does."""
        writes = self._world.journal.writes
        if self.lags and self._fed:
            return
        for write in writes[self._fed :]:
            self._apply_write(write)
        self._fed = len(writes)

    def _apply_write(self, write: Write) -> None:
        index = self._indexes.get(write.bucket)
        if index is not None:
            gone = "PURGE" if write.value is None else None
            index._receive(KeyValue.Entry(write.bucket, write.key, write.value, write.revision, 0, 0, gone))

    def is_at(self, what: str) -> bool:
        """Whether it has begun this work and has not ended it."""
        return any(task.get_name() == what for task in self._going)

    def begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin this work, which may never end."""
        task = asyncio.get_running_loop().create_task(self._guarded(work), name=what)
        self._going.add(task)
        task.add_done_callback(self._going.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Died:
            pass
        except (*FOR_NOW, LeaseLostError) as error:
            self.gate.met.append(type(error).__name__)
        except Exception as error:  # noqa: BLE001  # it breaks the history, which says so
            self._world.unforeseen(self.name, error)

    async def bury(self) -> None:
        """End what is left of a killed spawner."""
        self.gate.die()
        await self._spawner.core.reconciler.close()
        for task in list(self._going):
            task.cancel()
        while self._going:
            await asyncio.sleep(0)
