"""The spawner, composed: every replica takes commands and events, those that hold the leases schedule and lead."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from sandherd.bus.consuming import Delivery, Outcome
from sandherd.bus.identity import Minter, SpawnerKeys
from sandherd.bus.identity.revoking import Revoker
from sandherd.bus.lease import Lease
from sandherd.bus.service import Asked, Service, serve
from sandherd.bus.together import together
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import (
    AskCredential,
    CredentialGrant,
    LiveSandboxes,
    LiveTasks,
    SandboxList,
    TaskList,
)
from sandherd.contracts.streams import BY_CONSUMER
from sandherd.contracts.subjects import Principal
from sandherd.settings import Settings
from spawner.live import Live
from spawner.runtimes.contract import Runtime
from spawner.runtimes.opening import WORKER, Options, open_runtime
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.keeper import Keeper
from spawner.sandboxes.kept import Kept
from spawner.sandboxes.lifecycle import Rules
from spawner.sandboxes.orphans import Ward
from spawner.sandboxes.steps import Plans, Steps
from spawner.sandboxes.sweeper import Sweeper
from spawner.tasks.agents import Agents
from spawner.tasks.commands import Commands
from spawner.tasks.questions import Questions
from spawner.tasks.scheduler import Scheduler

COMMANDS: Final = "spawner-commands"
AGENTS: Final = "spawner-agents"
SCHEDULER_LEASE: Final = "spawner.scheduler"
SWEEP_LEASE: Final = "spawner.sweep"
AT_ONCE: Final = 16
"""So many commands or events are handled at the same time; those about one task or sandbox one after the other."""
_JOINER_MARGIN: Final = 3600.0
"""How much longer than the oldest sandbox a joiner's credential lives: to recover what one has left."""


@dataclass(frozen=True)
class Parts:
    """What the service is made of, once its connection stands."""

    commands: Commands
    agents: Agents
    credentials: Credentials
    questions: Questions


class Spawner:
    """The service's parts, made when it runs. What comes before they are there waits for them."""

    def __init__(self, service: Service, keys: SpawnerKeys, worker: tuple[str, ...]) -> None:
        self._service = service
        self._settings = service.settings
        self._keys = keys
        self._worker = worker
        self._ready = asyncio.Event()
        self._parts: Parts
        self._live: Live | None = None
        service.health.add("records", self._problem)

    async def command(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await (await self._when_ready()).commands.handle(delivery)

    async def agent(self, delivery: Delivery) -> Outcome:
        """Handle what an agent says."""
        return await (await self._when_ready()).agents.handle(delivery)

    async def credential(self, asked: Asked[AskCredential]) -> CredentialGrant:
        """Answer a sandbox that asks for its worker's credential."""
        return await (await self._when_ready()).credentials.grant(asked)

    async def tasks(self, asked: Asked[LiveTasks]) -> TaskList:
        """Answer which tasks there are."""
        return await (await self._when_ready()).questions.tasks(asked)

    async def sandboxes(self, asked: Asked[LiveSandboxes]) -> SandboxList:
        """Answer which sandboxes there are."""
        return await (await self._when_ready()).questions.sandboxes(asked)

    async def run(self) -> None:
        """Open the runtime, take the leases, and do what is due. Raises what keeps it from that."""
        service = self._service
        async with AsyncExitStack() as stack:
            runtime = await open_runtime(Options.of(self._settings, self._worker))
            stack.push_async_callback(runtime.close)
            revoker = await stack.enter_async_context(Revoker.open(self._settings.nats_url, self._keys, service.bus.js))
            live, minter = Live(service.bus, service.meters), Minter(self._keys)
            runtimes: Mapping[str, Runtime] = {runtime.name: runtime}
            sweep = Lease(service.bus, SWEEP_LEASE, service.instance)
            service.health.add(SWEEP_LEASE, sweep.problem)
            steps = Steps(live, runtimes, minter, revoker, self._plans(), self._rules(), self._settled, live.now())
            keeper = Keeper(live, sweep, steps)
            stack.push_async_callback(keeper.close)
            runtime.on_exit(keeper.wake_named)
            self._open_for_questions(live, runtimes, minter)
            await together(
                live.task_index.follow(service.bus),
                live.sandbox_index.follow(service.bus),
                self._schedule(live, keeper),
                self._sweep(live, keeper, sweep, runtimes),
            )

    def _open_for_questions(self, live: Live, runtimes: Mapping[str, Runtime], minter: Minter) -> None:
        self._parts = Parts(
            commands=Commands(self._service.bus, live, runtimes),
            agents=Agents(live),
            credentials=Credentials(live, minter, self._settings.worker_credential_life),
            questions=Questions(live),
        )
        self._live = live
        self._ready.set()

    async def _schedule(self, live: Live, keeper: Keeper) -> None:
        lease = Lease(self._service.bus, SCHEDULER_LEASE, self._service.instance)
        self._service.health.add(SCHEDULER_LEASE, lease.problem)
        scheduler = Scheduler(live, lease, self._settings.max_sandboxes, keeper.wake, self._settings.check_interval)
        await together(lease.keep(), scheduler.run())

    async def _sweep(self, live: Live, keeper: Keeper, lease: Lease, runtimes: Mapping[str, Runtime]) -> None:
        ward = Ward(self._service.bus, live, self._settings.project, self._settings.orphan_grace)
        sweeper = Sweeper(live, lease, keeper, ward=ward, kept=Kept(live, keeper), runtimes=runtimes)
        await together(lease.keep(), sweeper.run(self._settings.check_interval, self._settings.keep_ended))

    def _problem(self) -> str | None:
        return self._live.problem() if self._live else "the runtime is not open yet"

    async def _when_ready(self) -> Parts:
        await self._ready.wait()
        return self._parts

    def _plans(self) -> Plans:
        settings = self._settings
        return Plans(
            nats_url=settings.nats_url,
            heartbeat_interval=settings.heartbeat_interval,
            stop_grace=settings.stop_grace,
            joiner_life=settings.max_age + _JOINER_MARGIN,
            max_work_bytes=settings.max_work_mb * 1024 * 1024,
        )

    def _rules(self) -> Rules:
        return Rules(spawn_timeout=self._settings.spawn_timeout)

    async def _settled(self) -> bool:
        """Whether every agent event that the broker has was taken in."""
        info = await self._service.bus.js.consumer_info(BY_CONSUMER[AGENTS].stream, AGENTS)
        return not info.num_pending and not info.num_ack_pending


def compose(settings: Settings, worker: tuple[str, ...] = WORKER) -> Service:
    """The spawner, ready to run. Raises `ContractError` without its signing keys."""
    if settings.identity_dir is None:
        raise ContractError(
            Code.INVALID_FIELD,
            "the spawner needs its signing keys: SANDHERD_IDENTITY_DIR is not set",
            field="identity_dir",
            remedy="`sandherd up` makes them and sets it",
        )
    service = Service(Principal.SPAWNER, settings)
    spawner = Spawner(service, SpawnerKeys.read(settings.identity_dir), worker)
    service.consume(COMMANDS, spawner.command, concurrency=AT_ONCE)
    service.consume(AGENTS, spawner.agent, concurrency=AT_ONCE)
    service.answer(AskCredential, spawner.credential)
    service.answer(LiveTasks, spawner.tasks)
    service.answer(LiveSandboxes, spawner.sandboxes)
    service.requeues({"COMMANDS": spawner.command, "EVENTS": spawner.agent})
    service.background("spawner", spawner.run)
    return service


def main() -> None:
    """The program."""
    serve(Principal.SPAWNER, compose)


if __name__ == "__main__":
    main()
