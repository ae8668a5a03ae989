"""Composes the spawner. Every replica handles commands and events; holders of the leases schedule and reconcile."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import Any, Final

from sandherd.backoff import Backoff
from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.bus.identity import Minter, SpawnerKeys
from sandherd.bus.identity.revocation import Revoker
from sandherd.bus.lease import Lease
from sandherd.bus.table_consumers import create_consumers
from sandherd.concurrency import run_until_first
from sandherd.contracts.errors import Code, ContractError
from sandherd.contracts.requests import PartKind, Request
from sandherd.contracts.subjects import Principal
from sandherd.sealed_secrets import private_key, public_text
from sandherd.service.encoded_answer import AnyAnswer
from sandherd.service.requests import Answerer
from sandherd.service.service import IncomingRequest, Service, serve
from sandherd.service.stream_admin import StreamAdmin
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.access.refusals import MIB
from spawner.access.request_handlers import make_handlers
from spawner.access_tokens.request_handlers import TokenRequestHandler
from spawner.access_tokens.sessions import SessionRequestHandler
from spawner.commands import Commands
from spawner.forges.configuration import forges_of
from spawner.forges.credential_report import credential_problems, log_credentials
from spawner.forges.git_credentials import GitCredentials
from spawner.git_proxy.server import serve_proxy
from spawner.harness_plugins import HarnessPlugins
from spawner.live_state import Clock, LiveState, utc_now
from spawner.named_secrets.request_handlers import SecretRequestHandler
from spawner.named_secrets.webhook_secrets import WebhookSecretHandler
from spawner.parts import ANSWERED, Core, OpenRuntimes, Parts, SpawnerOptions, make_parts
from spawner.pool.filler import Filler
from spawner.pool.pool import Pool
from spawner.projects.request_handlers import ProjectRequestHandler
from spawner.pull_requests.request_handlers import PullRequestHandler
from spawner.pull_requests.service import PullRequestService
from spawner.records.quota import Quota
from spawner.records.vault import Vault, herd_key
from spawner.repositories.branch_service import BranchService
from spawner.repositories.git_requirements import problems
from spawner.repositories.mirror_paths import mirrors_folder
from spawner.repositories.repository_hosts import RepositoryHosts
from spawner.repositories.request_handlers import BranchRequestHandler
from spawner.runtime_health import reach
from spawner.runtimes.contract import Runtime, capabilities_of
from spawner.runtimes.factory import WORKER
from spawner.runtimes.registry import enter_namespace, open_runtimes
from spawner.sandboxes.abused_credentials import AbusedCredentials
from spawner.sandboxes.admission import Admission
from spawner.sandboxes.command_backlog import CommandBacklog
from spawner.sandboxes.commands import SandboxCommands
from spawner.sandboxes.credentials import Credentials
from spawner.sandboxes.event_barrier import AGENTS, event_barrier
from spawner.sandboxes.flood_guard import FloodGuard, limits_of
from spawner.sandboxes.gauges import SpawnerGauges
from spawner.sandboxes.lifecycle_facts import LifecycleTimeouts
from spawner.sandboxes.orphans import OrphanCollector
from spawner.sandboxes.prune_handler import PruneHandler
from spawner.sandboxes.quarantine import Quarantine
from spawner.sandboxes.reconciler import FOR_NOW, SandboxReconciler
from spawner.sandboxes.runtime_calls import disruption
from spawner.sandboxes.sandbox_plans import SandboxPlans
from spawner.sandboxes.step_runner import make_steps
from spawner.sandboxes.sweeper import Sweeper
from spawner.schedules.request_handlers import ScheduleRequestHandler
from spawner.schedules.runner import ScheduleRunner
from spawner.spec_resolution import SpawnPolicy
from spawner.tasks.agent_events import AgentEventHandler
from spawner.tasks.budget_blocks import BudgetBlockReader
from spawner.tasks.commands import TaskCommands
from spawner.tasks.live_queries import LiveQueries
from spawner.tasks.queue_updates import follow
from spawner.tasks.scheduler import Scheduler

COMMANDS: Final = "spawner-commands"
SCHEDULER_LEASE: Final = "spawner.scheduler"
SWEEP_LEASE: Final = "spawner.sweep"
SHORTEST_CALL: Final = 10.0
"""Minimum timeout of a runtime call, in seconds."""
LEASE_SECONDS: Final = 5.0
AT_ONCE: Final = 16
"""Maximum commands or events handled concurrently; those about one task or sandbox are handled in order."""

_BLOCKS_READ_EVERY: Final = 2.0
"""Seconds between two reads of the projects that are over budget."""
_SYNC: Final = Backoff(base=0.2, cap=5.0)
_log: Final = logs.get("spawner")


class Spawner:
    """The service's parts, created when it runs. Messages that arrive earlier wait for them."""

    def __init__(self, service: Service, keys: SpawnerKeys, options: SpawnerOptions) -> None:
        self._service = service
        self._settings = service.settings
        self._keys = keys
        self._options = options
        self._harnesses = HarnessPlugins()
        self._forges = forges_of(service.settings)
        self._ready = asyncio.Event()
        self._parts: Parts
        self._live: LiveState | None = None
        self._guard: FloodGuard | None = None
        service.health.add("records", self._problem)
        service.examining.add(PartKind.WARNING, self._harnesses.problems)
        service.examining.add(PartKind.WARNING, partial(problems, mirrors_folder(self._settings.home)))
        service.examining.add(PartKind.WARNING, partial(credential_problems, self._forges.hosts, self._settings))

    async def command(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await (await self._when_ready()).command(delivery)

    async def agent(self, delivery: Delivery) -> Outcome:
        """Handle an agent's event."""
        return await (await self._when_ready()).agent(delivery)

    def is_moot(self, delivery: Delivery) -> bool:
        """Whether an agent's event was published by a sandbox that was cut off."""
        return self._guard is not None and self._guard.was_cut_off(delivery)

    def request_handler(self, request: type[Request[Any]]) -> Answerer:
        """The handler of this kind of request."""

        async def answer(incoming: IncomingRequest[Any]) -> AnyAnswer:
            return await (await self._when_ready()).answers[request](incoming)

        return answer

    async def _sync(self, revoker: Revoker) -> None:
        """Push both accounts to the broker, and retry until it responds: it may be starting, too."""
        for attempt in count():
            try:
                await revoker.sync(self._options.clock())
                break
            except FOR_NOW as error:
                _log.warning("accounts not pushed to the broker, retrying", error=repr(error))
                await asyncio.sleep(_SYNC.delay(attempt))

    async def run(self) -> None:
        """Open the runtimes, take the leases, schedule and reconcile. Raises any error that prevents this."""
        bus = self._service.bus
        await create_consumers(bus)
        log_credentials(self._forges.hosts, self._settings)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._forges.close)
            runtimes = await self._open_runtimes(stack)
            self._service.examining.add(PartKind.RUNTIME, partial(reach, runtimes))
            revoker = await stack.enter_async_context(Revoker.open(self._settings.nats_url, self._keys, bus.js))
            await self._sync(revoker)
            core = self._core(runtimes, revoker)
            stack.push_async_callback(core.live.close)
            stack.push_async_callback(core.reconciler.close)
            for runtime in runtimes.values():
                runtime.on_exit(core.reconciler.wake_unit)
            self._open_for_requests(core)
            guard = self._guard = self._flood_guard(core, revoker)
            blocks = BudgetBlockReader(bus, core.queue, min(_BLOCKS_READ_EVERY, self._settings.check_interval))
            await blocks.read()
            await run_until_first(
                guard.run(self._settings.nats_url, self._keys.connections_credentials),
                core.live.follow(),
                blocks.run(),
                self._schedule(core),
                self._sweep(core),
                self._git_proxy(core),
            )

    def _flood_guard(self, core: Core, revoker: Revoker) -> FloodGuard:
        backlog = CommandBacklog(self._service.bus, self._settings.project_commands_mb * MIB)
        limits = limits_of(self._settings)
        abused = AbusedCredentials(self._service.bus, self._service.meters, revoker.users, limits.person_connections)
        return FloodGuard(
            core.live, core.lease, revoker, core.reconciler, backlog=backlog, abused=abused, limits=limits
        )

    def _core(self, runtimes: Mapping[str, Runtime], revoker: Revoker) -> Core:
        bus, vault = self._service.bus, Vault(self._service.bus, herd_key(self._keys.worker.seed))
        live, lease = LiveState(bus, self._service.meters, self._options.clock, vault), self._lease(SWEEP_LEASE)
        live.is_leader = lambda: lease.held
        minter = Minter(self._keys)
        steps = make_steps(
            live,
            lease,
            runtimes,
            minter=minter,
            revoker=revoker,
            plans=SandboxPlans.of(self._settings, os.environ, self._keys.worker.seed),
            rules=self._rules(),
            settled=event_barrier(bus),
        )
        policy, queue = SpawnPolicy.of(self._settings, capabilities_of(runtimes)), follow(live, self._settings)
        admission = Admission(bus, live, queue.capacity.exhausted_limit)
        pool = Pool(live, policy, self._settings.worker_credential_life)
        reconciler = SandboxReconciler(live, lease, steps)
        return Core(live, lease, minter, runtimes, policy, queue, admission, pool, reconciler)

    def _open_for_requests(self, core: Core) -> None:
        bus, live, policy = self._service.bus, core.live, core.policy
        sealing_key, records_mb = private_key(self._keys.worker.seed), self._settings.project_records_mb
        self._parts = make_parts(
            read=live.read,
            commands=Commands(
                self._task_commands(core),
                SandboxCommands(
                    bus,
                    live,
                    runtimes=core.runtimes,
                    menu=policy,
                    admission=core.admission,
                    assign=core.pool.assign,
                    quota=Quota.of("sandboxes", records_mb),
                ),
                sealing_key,
            ),
            agents=AgentEventHandler(live, partial(disruption, core.runtimes)),
            credentials=Credentials(live, core.minter, self._settings.worker_credential_life),
            queries=LiveQueries(live, core.queue),
            pruning=PruneHandler(live, core.runtimes, self._orphan_collector(core), core.reconciler.wake),
            secrets=SecretRequestHandler(live, sealing_key),
            others={
                **ProjectRequestHandler(
                    live,
                    core.queue.capacity,
                    policy,
                    self._harnesses,
                    hosts=RepositoryHosts.of(self._settings),
                    max_sandboxes=self._settings.max_sandboxes,
                ).handlers,
                **make_handlers(
                    bus,
                    live,
                    self._settings,
                    policy=policy,
                    runtimes=core.runtimes,
                    harnesses=self._harnesses.names,
                    secrets_key=public_text(sealing_key),
                ),
                **ScheduleRequestHandler(live, policy).handlers(),
                **BranchRequestHandler(live).handlers,
                **PullRequestHandler(live, self._forges).handlers,
                **TokenRequestHandler(live).handlers,
                **SessionRequestHandler(live, self._settings).handlers,
                **WebhookSecretHandler(live).handlers,
            },
        )
        self._live = live
        self._ready.set()

    def _task_commands(self, core: Core) -> TaskCommands:
        return TaskCommands(
            self._service.bus,
            core.live,
            core.policy,
            harnesses=self._harnesses,
            sealing_key=private_key(self._keys.worker.seed),
            quota=Quota.of("tasks", self._settings.project_records_mb),
            hosts=RepositoryHosts.of(self._settings),
        )

    async def _schedule(self, core: Core) -> None:
        lease = self._lease(SCHEDULER_LEASE)
        credentials = GitCredentials(self._forges, self._settings.git_credentials)
        hosts = RepositoryHosts.of(self._settings, credentials, credentials.protects)
        branches = BranchService.of(self._service.bus, core.live, lease, self._settings, core.runtimes, hosts=hosts)
        scheduler = Scheduler(
            core.live,
            core.queue,
            lease,
            admission=core.admission,
            new_record=branches.with_checkout(core.pool.new_record),
            assigned=core.reconciler.wake,
            settled=event_barrier(self._service.bus),
            interval=self._settings.check_interval,
        )
        submit = self._task_commands(core).submit_once
        pulls = PullRequestService.of(
            self._service.bus, core.live, lease, self._settings,
            forges=self._forges, mirrors=branches.mirrors, submit=submit,
        )  # fmt: skip
        schedules = ScheduleRunner(
            core.live,
            lease,
            submit,
            ids=self._service.bus.ids,
            interval=self._settings.check_interval,
            keep_ended=self._settings.keep_ended,
        )
        await lease.run_with(scheduler.run(), schedules.run(), *branches.work(), *pulls.work())

    async def _git_proxy(self, core: Core) -> None:
        """Serve the git proxy on every replica, if sandboxes may use it."""
        credentials = GitCredentials(self._forges, self._settings.git_credentials)
        hosts = RepositoryHosts.of(self._settings, credentials)
        await serve_proxy(self._service.bus, core.live, self._settings, hosts, self._keys.worker.seed)

    async def _sweep(self, core: Core) -> None:
        """Reconcile sandboxes, sweep and fill the pool, on one replica at a time."""
        settings, live, lease = self._settings, core.live, core.lease
        sweeper = Sweeper(
            live,
            lease,
            core.reconciler,
            collector=self._orphan_collector(core),
            quarantine=Quarantine(live, core.reconciler),
            runtimes=core.runtimes,
            gauges=SpawnerGauges(live, core.runtimes, settings.max_sandboxes),
        )
        filler = Filler(live, lease, core.runtimes, core.pool.kinds, max_age=settings.max_age)
        await lease.run_with(
            sweeper.run(settings.check_interval, settings.keep_ended),
            filler.run(settings.check_interval, self._rules().call_timeout),
        )

    def _orphan_collector(self, core: Core) -> OrphanCollector:
        return OrphanCollector(self._service.bus, core.live, self._settings.project, self._settings.orphan_grace)

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

    def _rules(self) -> LifecycleTimeouts:
        timeout = self._settings.spawn_timeout
        return LifecycleTimeouts(spawn_timeout=timeout, call_timeout=max(SHORTEST_CALL, timeout))


def compose(
    settings: Settings,
    worker: tuple[str, ...] = WORKER,
    *,
    runtimes: OpenRuntimes | None = None,
    clock: Clock = utc_now,
    lease_seconds: float = LEASE_SECONDS,
) -> Service:
    """The spawner, ready to run. Tests pass their own runtimes, clock and a short lease.

    Raises `ContractError` if its signing keys are missing.
    """
    if settings.identity_dir is None:
        raise ContractError(
            Code.INVALID_FIELD,
            "the spawner needs its signing keys: SANDHERD_IDENTITY_DIR is not set",
            field="identity_dir",
            remedy="`sandherd up` creates the keys and sets it",
        )
    service = Service(Principal.SPAWNER, settings)
    options = SpawnerOptions(runtimes or partial(open_runtimes, worker=worker), clock, lease_seconds)
    spawner = Spawner(service, SpawnerKeys.read(settings.identity_dir), options)
    service.consume_commands(COMMANDS, spawner.command, concurrency=AT_ONCE)
    service.consume(AGENTS, spawner.agent, concurrency=AT_ONCE, skip=spawner.is_moot)
    for request, at_once in ANSWERED.items():
        service.answer(request, spawner.request_handler(request), at_once=at_once)
    StreamAdmin(service).register()
    service.requeues({"COMMANDS": spawner.command, "EVENTS": spawner.agent})
    service.background("spawner", spawner.run)
    return service


def _composed(settings: Settings) -> Service:
    enter_namespace(settings)
    return compose(settings)


def main() -> None:
    """Run the spawner."""
    serve(Principal.SPAWNER, _composed)


if __name__ == "__main__":
    main()
