"""The monitor service, composed: one watch over the whole herd, by one replica at a time."""

from typing import Final

from monitor.actions import Actions
from monitor.budgets.component import BudgetComponent
from monitor.event_reader import EventReader
from monitor.rule_settings import rule_set_of
from monitor.watch import Watch
from sandherd.bus.lease import Lease
from sandherd.bus.publisher import EventPublisher
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service, serve
from sandherd.settings import Settings

LEASE: Final = "monitor.watch"


def compose(settings: Settings) -> Service:
    """The monitor, ready to run."""
    service = Service(Principal.MONITOR, settings)

    async def watch() -> None:
        lease = Lease(service.bus, LEASE, service.instance)
        service.health.add(LEASE, lease.problem)
        service.meters.watch("sandherd_lease_held", lambda: lease.held, lease=LEASE)
        await lease.run_with(_watch_while_held(service, lease))

    service.background("watch", watch)
    BudgetComponent(service).register()
    return service


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


def main() -> None:
    """Run until stopped."""
    serve(Principal.MONITOR, compose)


if __name__ == "__main__":
    main()
