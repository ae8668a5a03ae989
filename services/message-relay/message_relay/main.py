"""Composes the message-relay. Every replica handles commands; the replica with the lease delivers messages."""

from functools import cached_property
from typing import Final

from message_relay.answer_router import AnswerRouter
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_expiry import ApprovalExpiry
from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_store import ApprovalStore
from message_relay.commands import MessageCommands
from message_relay.dispatcher import Dispatcher
from message_relay.inbox import Inbox
from message_relay.inbox_delivery import InboxDelivery
from message_relay.message_names import MessageNames
from message_relay.relay_events import RelayEvents
from message_relay.webhooks.service import WebhookService
from sandherd.bus.consumers.consumer import Delivery, Outcome
from sandherd.bus.lease import Lease
from sandherd.contracts.events.conversation import AgentMessageSent
from sandherd.contracts.events.tools import AgentApprovalWithdrawn
from sandherd.contracts.subjects import Principal, read_event_subject
from sandherd.service.service import Service, serve
from sandherd.settings import Settings

LEASE: Final = "message-relay.delivery"
COMMANDS_CONSUMER: Final = "message-relay-commands"
EVENTS_CONSUMER: Final = "message-relay-agents"
AT_ONCE: Final = 16
"""Maximum commands that are handled concurrently. Commands of one sandbox are handled one after the other."""


class Relay:
    """The parts of the service, created once it is connected."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def handle_command(self, delivery: Delivery) -> Outcome:
        """Handle a command."""
        return await self._commands.handle(delivery)

    async def handle_event(self, delivery: Delivery) -> Outcome:
        """Handle an agent's approval request, its withdrawal, or a message to another agent."""
        event_type = read_event_subject(delivery.subject)[2]
        if event_type == AgentMessageSent.type:
            return await self._commands.pass_on(delivery)
        if event_type == AgentApprovalWithdrawn.type:
            return await self._approval_handler.withdraw(delivery)
        return await self._approval_handler.handle(delivery)

    async def expire_approvals(self) -> None:
        """Expire unanswered approvals."""
        await ApprovalExpiry(self._approvals, self._carryover, self._approval_handler).run()

    async def deliver(self) -> None:
        """Keep or wait for the lease, and deliver messages while it is held. Runs until cancelled."""
        self._service.health.add(LEASE, self._lease.problem)
        self._service.meters.watch("sandherd_lease_held", lambda: self._lease.held, lease=LEASE)
        await self._lease.run_with(self._deliver_while_held())

    async def _deliver_while_held(self) -> None:
        while True:
            await self._lease.wait_held()
            await self._dispatcher.run()

    @cached_property
    def _lease(self) -> Lease:
        return Lease(self._service.bus, LEASE, self._service.instance)

    @cached_property
    def _inbox(self) -> Inbox:
        return Inbox(self._service.bus)

    @cached_property
    def _events(self) -> RelayEvents:
        return RelayEvents(self._service.bus, self._service.meters)

    @cached_property
    def _dispatcher(self) -> Dispatcher:
        service = self._service
        answer_router = AnswerRouter(service.bus, self._approvals, self._carryover, self._approval_handler)
        delivery = InboxDelivery(
            service.bus, self._inbox, self._events, answer_router, service.meters, check=self._lease.check
        )
        return Dispatcher(service.bus, self._lease, self._inbox, delivery)

    @cached_property
    def _commands(self) -> MessageCommands:
        return MessageCommands(
            self._service.bus,
            self._inbox,
            MessageNames(self._service.bus),
            self._events,
            self._approval_handler,
            dispatcher=self._dispatcher,
            max_in_project=self._service.settings.project_messages,
        )

    @cached_property
    def _approvals(self) -> ApprovalStore:
        return ApprovalStore(self._service.bus)

    @cached_property
    def _approval_handler(self) -> ApprovalHandler:
        return ApprovalHandler(self._approvals, self._carryover, self._events, self._service.settings.open_approvals)

    @cached_property
    def _carryover(self) -> ApprovalCarryover:
        return ApprovalCarryover(self._service.bus, self._approvals)


def compose(settings: Settings) -> Service:
    """The message-relay, ready to run."""
    service = Service(Principal.MESSAGE_RELAY, settings)
    relay = Relay(service)
    service.consume_commands(COMMANDS_CONSUMER, relay.handle_command, concurrency=AT_ONCE)
    service.consume(EVENTS_CONSUMER, relay.handle_event, concurrency=AT_ONCE)
    service.requeues({"COMMANDS": relay.handle_command, "EVENTS": relay.handle_event})
    service.background("delivery", relay.deliver)
    service.background("approvals", relay.expire_approvals)
    WebhookService(service)
    return service


def main() -> None:
    """Run until stopped."""
    serve(Principal.MESSAGE_RELAY, compose)


if __name__ == "__main__":
    main()
