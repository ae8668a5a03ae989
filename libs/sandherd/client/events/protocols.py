"""The interface of a connection that followers need."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sandherd.client.events.target import Target
from sandherd.client.pending_creations import PendingCreations
from sandherd.contracts.envelope import Envelope


class LiveSubscription(Protocol):
    """A live subscription, as in nats-py."""

    @property
    def pending_msgs(self) -> int:
        """Number of messages received and not yet delivered to the handler."""

    async def unsubscribe(self) -> None:
        """End the subscription."""


@dataclass(frozen=True)
class EntityStatus:
    """The state of a target and, for a task, its sandbox."""

    state: str
    sandbox: str | None = None


class HerdConnection(Protocol):
    """The operations of a connection that followers need."""

    creations: PendingCreations
    """The tasks and sandboxes whose creation this connection has requested."""

    @property
    def connected(self) -> bool:
        """Whether the client is connected now."""

    async def listen(self, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> LiveSubscription:
        """Subscribe to a subject; the subscription is active after the next `flush`."""

    async def flush(self) -> None:
        """Wait until the broker has processed everything sent before, and its earlier messages are received."""

    def on_change(self, callback: Callable[[bool], None]) -> Callable[[], None]:
        """Call `callback` with True at each reconnect, and with False when the connection is closed permanently.

        Returns a function that removes the callback.
        """

    def on_command(self, callback: Callable[[Envelope[Any]], None]) -> Callable[[], None]:
        """Call `callback` with every command before it is published. Returns a function that removes it."""

    async def request(self, request: Any, *, timeout: float = 5.0) -> Any:
        """Send a request to a service and return its reply. Raises `HerdError`."""

    async def entity_status(self, target: Target) -> EntityStatus:
        """The state of a task or a sandbox. Raises `HerdError`: `not_found` if it does not exist."""
