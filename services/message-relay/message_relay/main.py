"""The message-relay service, composed: every replica takes commands, and the one that holds the lease delivers."""

from functools import cached_property
from typing import Final

from message_relay.answering import Answering
from message_relay.approvals import Approvals
from message_relay.delivering import Delivering
from message_relay.handing import Handing
from message_relay.inbox import Inbox
from message_relay.lapsing import Lapsing
from message_relay.outliving import Outliving
from message_relay.pumping import Pump
from message_relay.saying import Saying
from message_relay.taking import Taking
from sandherd.bus.consuming import Delivery, Outcome
from sandherd.bus.lease import Lease
from sandherd.bus.service import Service, serve
from sandherd.bus.together import together
from sandherd.contracts.events.agent import AgentMessageSent
from sandherd.contracts.events.tools import AgentApprovalWithdrawn
from sandherd.contracts.subjects import Principal, read_event_subject
from sandherd.settings import Settings

LEASE: Final = "message-relay.delivery"
CONSUMER: Final = "message-relay-commands"
ASKED: Final = "message-relay-agents"
AT_ONCE: Final = 16
"""So many commands are handled at the same time; those of one sandbox one after the other."""


class Relay:
    """The parts of the service, made when its connection stands."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def take(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await self._taking.take(delivery)

    async def hear(self, delivery: Delivery) -> Outcome:
        """Handle an agent's request for leave, the withdrawal of one, or its word to another agent."""
        said = read_event_subject(delivery.subject)[2]
        if said == AgentMessageSent.type:
            return await self._taking.pass_on(delivery)
        if said == AgentApprovalWithdrawn.type:
            return await self._answering.withdraw(delivery)
        return await self._answering.hear(delivery)

    async def lapse(self) -> None:
        """End what nobody answers."""
        await Lapsing(self._approvals, self._outliving, self._answering).run()

    async def deliver(self) -> None:
        """Deliver whenever the lease is held."""
        self._service.health.add(LEASE, self._lease.problem)
        self._service.meters.watch("sandherd_lease_held", lambda: self._lease.held, lease=LEASE)
        await together(self._lease.keep(), self._deliver_while_held())

    async def _deliver_while_held(self) -> None:
        while True:
            await self._lease.wait_held()
            await self._delivering.run()

    @cached_property
    def _lease(self) -> Lease:
        return Lease(self._service.bus, LEASE, self._service.instance)

    @cached_property
    def _inbox(self) -> Inbox:
        return Inbox(self._service.bus)

    @cached_property
    def _saying(self) -> Saying:
        return Saying(self._service.bus, self._service.meters)

    @cached_property
    def _delivering(self) -> Delivering:
        service = self._service
        handing = Handing(service.bus, self._approvals, self._outliving, self._answering)
        pump = Pump(service.bus, self._inbox, self._saying, handing, service.meters, check=self._lease.check)
        return Delivering(service.bus, self._lease, self._inbox, pump)

    @cached_property
    def _taking(self) -> Taking:
        return Taking(
            self._service.bus,
            self._inbox,
            self._saying,
            self._answering,
            self._delivering.wake,
            most_of_project=self._service.settings.project_messages,
        )

    @cached_property
    def _approvals(self) -> Approvals:
        return Approvals(self._service.bus)

    @cached_property
    def _answering(self) -> Answering:
        return Answering(self._approvals, self._outliving, self._saying, self._service.settings.open_approvals)

    @cached_property
    def _outliving(self) -> Outliving:
        return Outliving(self._service.bus, self._approvals)


def compose(settings: Settings) -> Service:
    """The message-relay, ready to run."""
    service = Service(Principal.MESSAGE_RELAY, settings)
    relay = Relay(service)
    service.consume(CONSUMER, relay.take, concurrency=AT_ONCE)
    service.consume(ASKED, relay.hear, concurrency=AT_ONCE)
    service.requeues({"COMMANDS": relay.take, "EVENTS": relay.hear})
    service.background("delivery", relay.deliver)
    service.background("approvals", relay.lapse)
    return service


def main() -> None:
    """Run until stopped."""
    serve(Principal.MESSAGE_RELAY, compose)


if __name__ == "__main__":
    main()
