"""What the worker asks of a harness, and what a harness may ask of the worker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol

from sandherd.contracts.delivery import InboxMessage
from sandherd.contracts.events import EventData

FailureType = Literal[
    "exit_status", "signal", "out_of_memory", "start", "model_refused", "model_unavailable", "limit_reached",
    "stopped", "internal",
]  # fmt: skip


class CannotTakeError(Exception):
    """The agent can't be given this message, now or later. The text says why."""


def check_in_time(message: InboxMessage, now: datetime) -> None:
    """Raises `CannotTakeError` for a message that has expired: its sender is told that nobody took it in time."""
    if now >= message.expires_at:
        raise CannotTakeError("it has expired before the agent could take it")


class Voice(Protocol):
    """How a harness speaks. Both return when what was said is safe; waiting for them is the back-pressure."""

    async def say(self, data: EventData) -> bool:
        """Say an event. False: it can't be said as it is, and an error that names it was said in its place."""

    async def show(self, text: str) -> None:
        """Show terminal output, as it came from the agent."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How an agent ended. `error_type` is None if it has done its task."""

    error_type: FailureType | None = None
    error: str = ""
    exit_code: int | None = None
    signal: int | None = None
    turns: int = 1
    final_output: str | None = None
    stop_reason: str | None = None
    session_id: str | None = None
    validation_passed: bool | None = None
    used: Mapping[str, int] = field(default_factory=dict)
    """Tokens and money, by the names that the end of an attempt has for them."""


class Harness(Protocol):
    """One agent, from its start to its end."""

    async def start(self) -> None:
        """Start the agent. A failure to start is an end like any other."""

    async def done(self) -> Ended:
        """Wait for what comes of the task. An agent that takes follow-ups may be there after it."""

    async def ended(self) -> Ended:
        """Wait until the agent and all it has started are gone, and everything it said is said."""

    @property
    def follows_up(self) -> bool:
        """Whether it is there and would take a message, now that the task is done."""

    async def inject(self, message: InboxMessage) -> None:
        """Give it a message, in the middle of whatever it does. Raises `CannotTakeError`."""

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop what it is doing now, not the agent.

        `message` is the one that asks for it, and is injected later: for it, this was done.
        """

    async def stop(self, grace: float) -> None:
        """End the agent and all it has started, by force after `grace` seconds. What came of its task stays."""
