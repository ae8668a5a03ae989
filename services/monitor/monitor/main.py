"""The monitor service, composed: one watch and one Conductor over the whole herd, each by one replica at a time."""

from functools import cached_property
from typing import Final

from monitor.actions import Actions
from monitor.assessment.assessor import Assessor
from monitor.budgets.component import BudgetComponent
from monitor.commands import MonitorCommands
from monitor.conductor.ledger_store import Outbox
from monitor.conductor.policy import Policy
from monitor.conductor.report import ReportHandler
from monitor.conductor.tenure import Conductor
from monitor.event_reader import EventReader
from monitor.rule_settings import rule_set_of
from monitor.watch import Watch
from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.requests.monitor import ShowSandbox
from sandherd.contracts.requests.monitor_report import AskMonitorReport
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service, serve
from sandherd.settings import Settings

LEASE: Final = "monitor.watch"
CONDUCTOR_LEASE: Final = "monitor.conductor"
COMMANDS_CONSUMER: Final = "monitor-commands"


def compose(settings: Settings) -> Service:
    """The monitor, ready to run."""
    service = Service(Principal.MONITOR, settings)
    monitor = Monitor(service)
    budgets = BudgetComponent(service)
    budgets.register()

    async def watch() -> None:
        lease = _lease(service, LEASE)
        await lease.run_with(_watch_while_held(service, lease, monitor, budgets))

    async def conduct() -> None:
        lease = _lease(service, CONDUCTOR_LEASE)
        await lease.run_with(_conduct_while_held(service, lease, monitor))

    service.background("watch", watch)
    if settings.conductor != "off":
        service.background("conductor", conduct)
    service.answer(AskMonitorReport, ReportHandler(service, budgets.reported).answer)
    service.consume_commands(COMMANDS_CONSUMER, monitor.handle_command)
    service.requeues({"COMMANDS": monitor.handle_command})
    return service


def _lease(service: Service, key: str) -> Lease:
    """A lease that readiness and metrics show."""
    lease = Lease(service.bus, key, service.instance)
    service.health.add(key, lease.problem)
    service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=key)
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


async def _watch_while_held(service: Service, lease: Lease, monitor: Monitor, budgets: BudgetComponent) -> None:
    rules = rule_set_of(service.settings)
    while True:
        service.health.add("watch", lambda: None)
        await lease.wait_held()
        reader = EventReader(service.bus)
        service.health.add("watch", reader.problem)
        actions = Actions(service.bus, monitor.publisher, service.settings.notifications)
        watch = Watch(
            service.bus, lease, rules, actions=actions, reader=reader, meters=service.meters, assessor=monitor.assessor
        )
        async with service.answering({ShowSandbox: budgets.with_spending(watch.show)}):
            await watch.run(service.settings.check_interval)


async def _conduct_while_held(service: Service, lease: Lease, monitor: Monitor) -> None:
    outbox, policy = Outbox(service.bus, monitor.publisher), Policy.of(service.settings)
    while True:
        await lease.wait_held()
        await Conductor(service.bus, lease, policy, outbox, service.meters).run()


def main() -> None:
    """Run until stopped."""
    serve(Principal.MONITOR, compose)


if __name__ == "__main__":
    main()
