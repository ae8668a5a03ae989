"""The monitor service, composed: one watch and one Conductor over the whole herd, each by one replica at a time."""

from collections.abc import Awaitable, Callable
from typing import Final

from monitor.actions import Actions
from monitor.conductor.ledger_store import Outbox
from monitor.conductor.policy import Policy
from monitor.conductor.report import ReportHandler
from monitor.conductor.tenure import Conductor
from monitor.event_reader import EventReader
from monitor.rule_settings import rule_set_of
from monitor.watch import Watch
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.requests.monitor import AskMonitorReport
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service, serve
from sandherd.settings import Settings

LEASE: Final = "monitor.watch"
CONDUCTOR_LEASE: Final = "monitor.conductor"


def compose(settings: Settings) -> Service:
    """The monitor, ready to run."""
    service = Service(Principal.MONITOR, settings)
    _with_lease(service, "watch", LEASE, _watch_while_held)
    if settings.conductor != "off":
        _with_lease(service, "conductor", CONDUCTOR_LEASE, _conduct_while_held)
    service.answer(AskMonitorReport, ReportHandler(service).answer)
    return service


def _with_lease(service: Service, name: str, key: str, work: Callable[[Service, Lease], Awaitable[None]]) -> None:
    async def run() -> None:
        lease = Lease(service.bus, key, service.instance)
        service.health.add(key, lease.problem)
        service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=key)
        await lease.run_with(work(service, lease))

    service.background(name, run)


async def _watch_while_held(service: Service, lease: Lease) -> None:
    publisher = EventPublisher(service.bus, Principal.MONITOR, service.instance)
    rules = rule_set_of(service.settings)
    while True:
        service.health.add("watch", lambda: None)
        await lease.wait_held()
        reader = EventReader(service.bus)
        service.health.add("watch", reader.problem)
        actions = Actions(service.bus, publisher, service.settings.notifications)
        watch = Watch(service.bus, lease, rules, actions=actions, reader=reader, meters=service.meters)
        await watch.run(service.settings.check_interval)


async def _conduct_while_held(service: Service, lease: Lease) -> None:
    outbox = Outbox(service.bus, EventPublisher(service.bus, Principal.MONITOR))
    policy = Policy.of(service.settings)
    while True:
        await lease.wait_held()
        await Conductor(service.bus, lease, policy, outbox, service.meters).run()


def main() -> None:
    """Run until stopped."""
    serve(Principal.MONITOR, compose)


if __name__ == "__main__":
    main()
