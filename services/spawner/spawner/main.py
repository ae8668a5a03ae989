"""The spawner, composed: every replica takes commands and events, those that hold the leases schedule and lead."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Final

from pydantic import BaseModel

from sandherd.bus.answering import Answerer
from sandherd.bus.consuming import Delivery, Outcome
from sandherd.bus.identity import Minter, SpawnerKeys
from sandherd.bus.identity.revoking import Revoker
from sandherd.bus.lease import Lease
from sandherd.bus.service import Asked, Service, serve
from sandherd.bus.stream_admin import StreamAdmin
from sandherd.bus.table_consumers import create_consumers
from sandherd.bus.together import together
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import PartKind, Request
from sandherd.contracts.subjects import Principal
from sandherd.sealed_secrets import private_key, public_text
from sandherd.settings import Settings
from spawner.access.answers import make_answers
from spawner.commands import Commands
from spawner.core import Core, OpenRuntimes, Options
from spawner.live import Clock, Live, utc_now
from spawner.named_secrets.answers import SecretAnswers
from spawner.parts import ANSWERED, Parts, make_parts
from spawner.pool.decisions import kinds
from spawner.pool.filler import Filler
from spawner.pool.pool import Pool
from spawner.reachable import reach
from spawner.records.quota import Quota
from spawner.records.vault import Vault, herd_key
from spawner.resolving import Menu
from spawner.runtimes.choosing import enter_namespace, open_runtimes
from spawner.runtimes.contract import Runtime, able
from spawner.runtimes.opening import WORKER
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.commands import SandboxCommands
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.facts import Rules
from spawner.sandboxes.flood_guard import FloodGuard, limits_of
from spawner.sandboxes.keeper import Keeper
from spawner.sandboxes.kept import Kept
from spawner.sandboxes.measuring import Measures
from spawner.sandboxes.orphans import Ward
from spawner.sandboxes.planning import Plans
from spawner.sandboxes.pruning import Pruning
from spawner.sandboxes.settling import AGENTS, settling
from spawner.sandboxes.steps import make_steps
from spawner.sandboxes.sweeper import Sweeper
from spawner.tasks.agents import Agents
from spawner.tasks.commands import TaskCommands
from spawner.tasks.questions import Questions
from spawner.tasks.queueing import follow
from spawner.tasks.scheduler import Scheduler

COMMANDS: Final = "spawner-commands"
SCHEDULER_LEASE: Final = "spawner.scheduler"
SWEEP_LEASE: Final = "spawner.sweep"
SHORTEST_CALL: Final = 10.0
"""A runtime is given so many seconds to answer at the least."""
LEASE_SECONDS: Final = 5.0
AT_ONCE: Final = 16
"""So many commands or events are handled at the same time; those about one task or sandbox one after the other."""


class Spawner:
    """The service's parts, made when it runs. What comes before they are there waits for them."""

    def __init__(self, service: Service, keys: SpawnerKeys, options: Options) -> None:
        self._service = service
        self._settings = service.settings
        self._keys = keys
        self._options = options
        self._ready = asyncio.Event()
        self._parts: Parts
        self._live: Live | None = None
        self._guard: FloodGuard | None = None
        service.health.add("records", self._problem)

    async def command(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await (await self._when_ready()).command(delivery)

    async def agent(self, delivery: Delivery) -> Outcome:
        """Handle what an agent says."""
        return await (await self._when_ready()).agent(delivery)

    def is_moot(self, delivery: Delivery) -> bool:
        """Whether an agent's event is of a sandbox that was cut off."""
        return self._guard is not None and self._guard.was_cut_off(delivery)

    def answering(self, request: type[Request[Any]]) -> Answerer:
        """What answers this kind of request."""

        async def answer(asked: Asked[Any]) -> BaseModel:
            return await (await self._when_ready()).answers[request](asked)

        return answer

    async def run(self) -> None:
        """Open the runtime, take the leases, and do what is due. Raises what keeps it from that."""
        bus = self._service.bus
        await create_consumers(bus)
        async with AsyncExitStack() as stack:
            runtimes = await self._open_runtimes(stack)
            self._service.examining.add(PartKind.RUNTIME, partial(reach, runtimes))
            revoker = await stack.enter_async_context(Revoker.open(self._settings.nats_url, self._keys, bus.js))
            await revoker.sync(self._options.clock())
            core = self._core(runtimes, revoker)
            stack.push_async_callback(core.keeper.close)
            for runtime in runtimes.values():
                runtime.on_exit(core.keeper.wake_unit)
            self._open_for_questions(core)
            guard = self._guard = FloodGuard(core.live, core.lease, revoker, core.keeper, limits_of(self._settings))
            await together(
                guard.run(self._settings.nats_url, self._keys.connections_credentials),
                core.live.task_index.follow(bus),
                core.live.sandbox_index.follow(bus),
                core.live.pool_index.follow(bus),
                self._schedule(core),
                self._sweep(core),
            )

    def _core(self, runtimes: Mapping[str, Runtime], revoker: Revoker) -> Core:
        bus, vault = self._service.bus, Vault(self._service.bus, herd_key(self._keys.worker.seed))
        live, lease = Live(bus, self._service.meters, self._options.clock, vault), self._lease(SWEEP_LEASE)
        minter = Minter(self._keys)
        steps = make_steps(
            live,
            lease,
            runtimes,
            minter=minter,
            revoker=revoker,
            plans=Plans.of(self._settings, os.environ),
            rules=self._rules(),
            settled=settling(bus),
        )
        menu, queue = Menu.of(self._settings, able(runtimes)), follow(live, self._settings)
        admission = Admission(bus, live, queue.room.lacking)
        pool, keeper = Pool(live, menu), Keeper(live, lease, steps)
        return Core(live, lease, minter, runtimes, menu, queue, admission, pool, keeper)

    def _open_for_questions(self, core: Core) -> None:
        bus, live, menu = self._service.bus, core.live, core.menu
        sealing, records_mb = private_key(self._keys.worker.seed), self._settings.project_records_mb
        self._parts = make_parts(
            read=live.read,
            commands=Commands(
                TaskCommands(bus, live, menu, sealing, Quota.of("tasks", records_mb)),
                SandboxCommands(
                    bus,
                    live,
                    runtimes=core.runtimes,
                    menu=menu,
                    admission=core.admission,
                    claim=core.pool.claim,
                    quota=Quota.of("sandboxes", records_mb),
                ),
                sealing,
            ),
            agents=Agents(live),
            credentials=Credentials(live, core.minter, self._settings.worker_credential_life),
            questions=Questions(live, core.queue),
            pruning=Pruning(live, core.runtimes, self._ward(core), core.keeper.wake),
            secrets=SecretAnswers(live, sealing),
            others=make_answers(
                bus, live, self._settings, menu=menu, runtimes=core.runtimes, secrets_key=public_text(sealing)
            ),
        )
        self._live = live
        self._ready.set()

    async def _schedule(self, core: Core) -> None:
        lease = self._lease(SCHEDULER_LEASE)
        scheduler = Scheduler(
            core.live,
            core.queue,
            lease,
            admission=core.admission,
            intend=core.pool.intend,
            assigned=core.keeper.wake,
            settled=settling(self._service.bus),
            interval=self._settings.check_interval,
        )
        await together(lease.keep(), scheduler.run())

    async def _sweep(self, core: Core) -> None:
        """What one replica alone does: it leads sandboxes, sweeps, and fills the pool."""
        settings, live, lease = self._settings, core.live, core.lease
        sweeper = Sweeper(
            live,
            lease,
            core.keeper,
            ward=self._ward(core),
            kept=Kept(live, core.keeper),
            runtimes=core.runtimes,
            measures=Measures(live, core.runtimes, settings.max_sandboxes),
        )
        filler = Filler(live, lease, core.runtimes, kinds(core.menu), max_age=settings.max_age)
        await together(
            lease.keep(),
            sweeper.run(settings.check_interval, settings.keep_ended),
            filler.run(settings.check_interval, self._rules().call_timeout),
        )

    def _ward(self, core: Core) -> Ward:
        return Ward(self._service.bus, core.live, self._settings.project, self._settings.orphan_grace)

    async def _open_runtimes(self, stack: AsyncExitStack) -> Mapping[str, Runtime]:
        opened = await self._options.open_runtimes(self._settings)
        for runtime in opened:
            stack.push_async_callback(runtime.close)
        return {runtime.name: runtime for runtime in opened}

    def _lease(self, key: str) -> Lease:
        lease = Lease(self._service.bus, key, self._service.instance, self._options.lease_seconds)
        self._service.health.add(key, lease.problem)
        self._service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=key)
        return lease

    def _problem(self) -> str | None:
        return self._live.problem() if self._live else "the runtime is not open yet"

    async def _when_ready(self) -> Parts:
        await self._ready.wait()
        await self._parts.read()
        return self._parts

    def _rules(self) -> Rules:
        timeout = self._settings.spawn_timeout
        return Rules(spawn_timeout=timeout, call_timeout=max(SHORTEST_CALL, timeout))


def compose(
    settings: Settings,
    worker: tuple[str, ...] = WORKER,
    *,
    runtimes: OpenRuntimes | None = None,
    clock: Clock = utc_now,
    lease_seconds: float = LEASE_SECONDS,
) -> Service:
    """The spawner, ready to run; tests bring runtimes, a clock and a short lease of their own.

    Raises `ContractError` without its signing keys.
    """
    if settings.identity_dir is None:
        raise ContractError(
            Code.INVALID_FIELD,
            "the spawner needs its signing keys: SANDHERD_IDENTITY_DIR is not set",
            field="identity_dir",
            remedy="`sandherd up` makes them and sets it",
        )
    service = Service(Principal.SPAWNER, settings)
    options = Options(runtimes or partial(open_runtimes, worker=worker), clock, lease_seconds)
    spawner = Spawner(service, SpawnerKeys.read(settings.identity_dir), options)
    service.consume(COMMANDS, spawner.command, concurrency=AT_ONCE)
    service.consume(AGENTS, spawner.agent, concurrency=AT_ONCE, skip=spawner.is_moot)
    for request, at_once in ANSWERED.items():
        service.answer(request, spawner.answering(request), at_once=at_once)
    StreamAdmin(service).register()
    service.requeues({"COMMANDS": spawner.command, "EVENTS": spawner.agent})
    service.background("spawner", spawner.run)
    return service


def _composed(settings: Settings) -> Service:
    enter_namespace(settings)
    return compose(settings)


def main() -> None:
    """The program."""
    serve(Principal.SPAWNER, _composed)


if __name__ == "__main__":
    main()
