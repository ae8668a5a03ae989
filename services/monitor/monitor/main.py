"""Composes the monitor service.

Its replicas share the sandboxes; one of them runs the conductor, and one the budgets.
"""

import asyncio
import gc
from functools import cached_property
from typing import Any, Final

from pydantic import BaseModel

from monitor.actions import Actions
from monitor.assessment.assessor import Assessor
from monitor.budgets.component import BudgetComponent
from monitor.commands import MonitorCommands
from monitor.conductor.conductor_loop import Conductor
from monitor.conductor.ledger_store import Outbox
from monitor.conductor.policy import ConductorPolicy
from monitor.conductor.report_handler import ReportHandler
from monitor.partition_leases import PartitionShares
from monitor.partition_plan import partition_of
from monitor.replica_watch import ReplicaWatch
from monitor.rule_settings import rule_set_of
from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.concurrency import cancel_and_wait, run_until_first
from sandherd.contracts.requests.monitor import ShowSandbox
from sandherd.contracts.requests.monitor_report import GetMonitorReport
from sandherd.contracts.subjects import Principal
from sandherd.service.requests import Answerer, IncomingRequest, OtherReplicaRepliesError
from sandherd.service.service import Service, serve
from sandherd.settings import Settings

CONDUCTOR_LEASE: Final = "monitor.conductor"
COMMANDS_CONSUMER: Final = "monitor-commands"


def compose(settings: Settings) -> Service:
    """The monitor service, ready to run."""
    service = Service(Principal.MONITOR, settings)
    monitor = Monitor(service)
    budgets = BudgetComponent(service)
    budgets.register()

    async def watch() -> None:
        await _watch(service, monitor, budgets)

    async def conduct() -> None:
        lease = _lease(service, CONDUCTOR_LEASE)
        await lease.run_with(_conduct_while_held(service, lease, monitor))

    service.background("watch", watch)
    if settings.conductor != "off":
        service.background("conductor", conduct)
    service.answer(GetMonitorReport, ReportHandler(service, budgets.report_section).answer)
    service.consume_commands(COMMANDS_CONSUMER, monitor.handle_command)
    service.requeues({"COMMANDS": monitor.handle_command})
    return service


def _lease(service: Service, key: str) -> Lease:
    """A new lease, which readiness and metrics show."""
    return _expose_lease(service, Lease(service.bus, key, service.instance))


def _expose_lease(service: Service, lease: Lease) -> Lease:
    service.health.add(lease.key, lease.problem)
    service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=lease.key)
    return lease


class Monitor:
    """The parts of the service, created once it is connected."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle_command(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await self._commands.handle(delivery)

    @cached_property
    def publisher(self) -> EventPublisher:
        """Publishes all events of this process: they are one source."""
        return EventPublisher(self._service.bus, Principal.MONITOR, self._service.instance)

    @cached_property
    def assessor(self) -> Assessor | None:
        """The model that assesses soft findings, if one is configured. Raises `AssessorMissingError`."""
        settings = self._service.settings
        return None if settings.assessor_model is None else Assessor(self._service.bus, settings)

    @cached_property
    def _commands(self) -> MonitorCommands:
        return MonitorCommands(self._service.bus, self.publisher, rule_set_of(self._service.settings))


async def _watch(service: Service, monitor: Monitor, budgets: BudgetComponent) -> None:
    """Watch the partitions of this replica. At the end they are saved and released before the watch stops."""
    bus, settings, count = service.bus, service.settings, service.settings.monitor_partitions
    actions = Actions(bus, monitor.publisher, settings.notifications)
    watch = ReplicaWatch(
        bus, count, rule_set_of(settings), actions=actions, meters=service.meters, assessor=monitor.assessor
    )  # fmt: skip
    shares = PartitionShares(bus, service.instance, count, watch.hold)
    _expose_shares(service, watch, shares, count)
    watch_task = asyncio.ensure_future(watch.run(settings.check_interval))
    try:
        async with service.answering({ShowSandbox: _show_handler(watch, shares, count, budgets)}, by_each=True):
            await run_until_first(asyncio.shield(watch_task), shares.run())
    finally:
        await cancel_and_wait([watch_task])


def _expose_shares(service: Service, watch: ReplicaWatch, shares: PartitionShares, count: int) -> None:
    _expose_lease(service, shares.layout)
    service.health.add("watch", watch.problem)
    service.health.add("partitions", shares.problem)
    service.health.add_warning("partitions", shares.warning)
    service.meters.set("sandherd_monitor_partitions", count)
    service.meters.watch("sandherd_monitor_partitions_held", lambda: shares.held)


def _show_handler(watch: ReplicaWatch, shares: PartitionShares, count: int, budgets: BudgetComponent) -> Answerer:
    async def show(incoming: IncomingRequest[Any]) -> BaseModel:
        view = watch.show(incoming)
        if view is not None:
            return await budgets.with_spending(view)
        await shares.check_unwatched(partition_of(incoming.project, incoming.request.sandbox, count))
        raise OtherReplicaRepliesError

    return show


async def _conduct_while_held(service: Service, lease: Lease, monitor: Monitor) -> None:
    outbox, policy = Outbox(service.bus, monitor.publisher), ConductorPolicy.of(service.settings)
    while True:
        await lease.wait_held()
        await Conductor(service.bus, lease, policy, outbox, service.meters).run()


def collect_rarely() -> None:
    """Run the garbage collector rarely: replaced states have no reference cycles, so they are freed without it."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def main() -> None:
    """Run until stopped."""
    collect_rarely()
    serve(Principal.MONITOR, compose)


if __name__ == "__main__":
    main()
