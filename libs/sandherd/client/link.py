"""What following needs of a connection, whoever holds it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from sandherd.client.target import Target
from sandherd.contracts.envelope import Envelope


class Subscription(Protocol):
    """A live subscription, as nats-py has it."""

    @property
    def pending_msgs(self) -> int:
        """What was received and not handed over yet."""

    async def unsubscribe(self) -> None:
        """Hear no more of it."""


@dataclass(frozen=True)
class Standing:
    """How a target stands: its state and, for a task, its sandbox."""

    state: str
    sandbox: str | None = None


class Link(Protocol):
    """What following needs of a connection."""

    @property
    def connected(self) -> bool:
        """Whether the connection stands at this moment."""

    async def listen(self, subject: str, handle: Callable[[str, bytes], Awaitable[None]]) -> Subscription:
        """Hear what is said on a subject; all of it after the next `settle`."""

    async def settle(self) -> None:
        """Wait until the broker has heard what we asked of it, and we have all that it sent us before."""

    def on_change(self, tell: Callable[[bool], None]) -> Callable[[], None]:
        """Be told of every reconnect (True) and of the connection's end (False). Returns how to be told no more."""

    def on_command(self, tell: Callable[[Envelope[Any]], None]) -> Callable[[], None]:
        """Be told of every command just before it is given. Returns how to be told no more."""

    async def ask(self, request: Any, *, timeout: float = 5.0) -> Any:
        """Ask a service. Raises `HerdError`."""

    async def standing(self, target: Target) -> Standing:
        """How a target stands. Raises `HerdError`, with `not_found` if there is no such thing."""
