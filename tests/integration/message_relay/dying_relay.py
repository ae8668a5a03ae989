"""A relay that is killed before any of its acts, as by SIGKILL."""

from typing import Any, cast

from prometheus_client import CollectorRegistry

from message_relay.answer_router import AnswerRouter
from message_relay.approval_carryover import ApprovalCarryover
from message_relay.approval_expiry import ApprovalExpiry
from message_relay.approval_handler import ApprovalHandler
from message_relay.approval_store import ApprovalStore
from message_relay.commands import MessageCommands
from message_relay.dispatcher import Dispatcher
from message_relay.inbox import FirstMessage, Inbox, Key
from message_relay.inbox_delivery import InboxDelivery
from message_relay.message_names import MessageNames
from message_relay.relay_events import RelayEvents
from sandherd.bus.connection import Bus
from sandherd.telemetry.meters import Meters


class Killed(BaseException):
    """Stands for the SIGKILL in the code that runs."""


class Relay:
    """The relay's parts on a connection that ends before its n-th act."""

    def __init__(self, bus: Bus, acts: int | None) -> None:
        self._left = acts
        self._first: FirstMessage | None = None
        bus.publish_stored = self._counted(bus.publish_stored)  # type: ignore[method-assign]  # counted
        bus.request = self._counted(bus.request)  # type: ignore[method-assign]  # counted
        bus.js.delete_msg = self._counted(bus.js.delete_msg)  # type: ignore[method-assign]  # counted
        inbox, saying = Inbox(bus), RelayEvents(bus, Meters(CollectorRegistry()))
        approvals = ApprovalStore(bus)
        approvals._write = self._counted(approvals._write)  # type: ignore[method-assign]  # all writes
        outliving = ApprovalCarryover(bus, approvals)
        self.answering = ApprovalHandler(approvals, outliving, saying)
        self.lapsing = ApprovalExpiry(approvals, outliving, self.answering)
        handing = AnswerRouter(bus, approvals, outliving, self.answering)
        names = MessageNames(bus)
        names.claim = self._counted(names.claim)  # type: ignore[method-assign]  # counted
        names.release = self._counted(names.release)  # type: ignore[method-assign]  # counted
        self.taking = MessageCommands(bus, inbox, names, saying, self.answering, dispatcher=cast("Dispatcher", self))
        self.pump = InboxDelivery(bus, inbox, saying, handing, Meters(CollectorRegistry()), check=lambda: None)

    def serves(self, _key: Key) -> bool:
        """No sandbox is served before `deliver` is called."""
        return False

    def wake(self, _key: Key, first: FirstMessage | None = None) -> None:
        """Remember what the dispatcher would deliver first."""
        self._first = first

    async def deliver(self, key: Key) -> None:
        """Deliver what waits for a sandbox."""
        await self.pump.drain(key, first=self._first)

    @property
    def acts_left(self) -> int:
        """The number of acts that it has left."""
        return self._left or 0

    def _counted(self, act: Any) -> Any:
        async def counted(*args: Any, **kwargs: Any) -> Any:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    raise Killed
            return await act(*args, **kwargs)

        return counted
