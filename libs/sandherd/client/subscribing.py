"""Durable subscriptions of a project: made by event-ingest, as nobody else may make consumers."""

from collections.abc import Sequence
from typing import Literal

from sandherd.client.connection import Connection
from sandherd.client.errors import checked_name, made
from sandherd.client.receiving import Receiving
from sandherd.contracts.requests import (
    AskSubscriptions,
    Subscribe,
    Subscription,
    SubscriptionList,
    Unsubscribe,
    Unsubscribed,
)


class Subscribing:
    """The part of `Herd` that is about subscriptions. Every method raises `HerdError`."""

    connection: Connection

    async def subscribe(
        self, name: str, *, types: Sequence[str] = (), start: Literal["new", "all"] | int = "new"
    ) -> Subscription:
        """Have the project's events kept until they are taken: all, or those of these types or domains.

        `start` is what is said from now on, all that the stream still has, or a place in it. The same subscription
        asked for twice is one, and keeps its place.
        """
        question = made(Subscribe, name=checked_name(name, "name"), types=list(types), start=start)
        return await self.connection.ask(question)

    async def subscriptions(self) -> SubscriptionList:
        """All of the project."""
        return await self.connection.ask(AskSubscriptions())

    async def unsubscribe(self, name: str) -> Unsubscribed:
        """Take one away, and forget how far it was."""
        return await self.connection.ask(made(Unsubscribe, name=checked_name(name, "name")))

    def receive(self, name: str) -> Receiving:
        """The events of a subscription, with a subscriber's credential. Each comes again until it is acknowledged.

        Of several programs that take from one subscription at once, each event goes to one.
        """
        return Receiving(self.connection, checked_name(name, "name"))
