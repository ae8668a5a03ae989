"""A replica that holds a partition, with a broker that accepts what it publishes."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from prometheus_client import CollectorRegistry

from monitor.actions import Actions
from monitor.enforcement import Enforcement
from monitor.herd import Herd
from sandherd.bus.lease import LeaseLostError
from sandherd.bus.publisher import EventPublisher
from sandherd.bus.replies import Acknowledgement
from sandherd.contracts.names import DerivedIds
from sandherd.telemetry.meters import Meters
from tests.unit.monitor.rule_sets import with_ladder

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = ("p1", "sbx-1")
RULES = with_ladder("pause", cooldown=0)


class Lease:
    """A lease that the test takes."""

    held = True
    fence = 1

    def check(self) -> None:
        if not self.held:
            raise LeaseLostError


class Broker:
    """Accepts all that is published; `meanwhile` happens before the reply to a command."""

    reconnects = 0
    connected = True

    def __init__(self) -> None:
        self.ids = DerivedIds(b"of the monitors")
        self.events: list[Any] = []
        self.commands: list[Any] = []
        self.names: set[str] = set()
        self.meanwhile: Callable[[], None] = lambda: None

    @property
    def sent(self) -> list[type]:
        """The kinds of its commands."""
        return [type(one.data) for one in self.commands]

    async def publish_event(self, event: Any, *, msg_id: str | None = None, **_: Any) -> Acknowledgement:
        name = msg_id or str(event.id)
        if name in self.names:
            return Acknowledgement("EVENTS", len(self.events), duplicate=True)
        self.names.add(name)
        self.events.append(event)
        return Acknowledgement("EVENTS", len(self.events), duplicate=False)

    async def publish_command(self, command: Any, **_: Any) -> None:
        self.commands.append(command)
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


def enforcement(broker: Broker, herd: Herd) -> Enforcement:
    bus: Any = broker
    lease: Any = Lease()
    return Enforcement(bus, lease, Actions(bus, EventPublisher(bus, "monitor")), Meters(CollectorRegistry()), herd)
