"""Operations on durable subscriptions: create, list and delete them, and receive their events."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, validated
from sandherd.contracts import requests

if TYPE_CHECKING:
    from sandherd.client.subscriptions import EventStream


class SubscriptionOperations:
    """The subscription methods of `Herd`. Every method raises `HerdError`."""

    connection: Connection

    async def subscribe(
        self,
        name: str,
        *,
        types: Sequence[str] = (),
        start: "Literal['new', 'all'] | int | datetime" = "new",
        entities: Sequence[str] = (),
        update: bool = False,
    ) -> "requests.Subscription":
        """Create a durable subscription to the project's events. `types` are types or domains of events; empty: all.

        `entities` are the tasks and sandboxes whose events are wanted; empty: all. `start` is `new` (events from now
        on), `all` (all that the stream still stores), a stream sequence, or a time. Creating the same subscription
        again changes nothing; with `update` it gets these types and entities. In both cases its position stays.
        """
        request = validated(
            requests.Subscribe,
            name=checked_name(name, "name"),
            types=list(types),
            start=start,
            entities=list(entities),
            update=update,
        )
        return await self.connection.request(request)

    async def subscriptions(self) -> "requests.SubscriptionList":
        """All subscriptions of the project."""
        return await self.connection.request(requests.ListSubscriptions())

    async def unsubscribe(self, name: str) -> "requests.UnsubscribeResult":
        """Delete a subscription and its position."""
        return await self.connection.request(validated(requests.Unsubscribe, name=checked_name(name, "name")))

    def receive(self, name: str) -> "EventStream":
        """The events of a subscription. Unacknowledged events are redelivered. Needs a subscriber's credential.

        If several programs receive from one subscription, each event is delivered to one of them.
        """
        from sandherd.client.subscriptions import EventStream

        return EventStream(self.connection, checked_name(name, "name"))
