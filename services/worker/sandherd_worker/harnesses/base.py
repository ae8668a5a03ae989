"""The interface between the worker and a harness, and the totals of an agent's usage."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, Protocol

from sandherd.contracts.events import EventData
from sandherd.contracts.events.agent import AgentUsage
from sandherd.contracts.inbox_messages import InboxMessage
from sandherd.contracts.model import MAX_WHOLE

FailureType = Literal[
    "exit_status", "signal", "out_of_memory", "start", "model_refused", "model_unavailable", "limit_reached",
    "stopped", "internal",
]  # fmt: skip


class MessageRefusedError(Exception):
    """The agent will not receive this message. The text gives the reason."""


def check_in_time(message: InboxMessage, now: datetime) -> None:
    """Raises `MessageRefusedError` for a message that has expired, so that its sender gets a rejection."""
    if now >= message.expires_at:
        raise MessageRefusedError("it expired before the agent could take it")


class EventSink(Protocol):
    """Publishes the events and output of a harness. Both methods return when the data is durable.

    A harness waits for them before it reads more from its agent: that is the back-pressure.
    """

    async def publish(self, data: EventData) -> bool:
        """Publish an event. False if it can't be published: an error that names the event was published instead."""

    async def show(self, text: str) -> None:
        """Publish terminal output of the agent, unchanged."""


@dataclass(frozen=True, kw_only=True)
class AgentEnd:
    """How an agent ended. `error_type` is None if it has completed its task."""

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
    """Tokens and cost, under the names used in the event that ends an attempt."""


class Harness(Protocol):
    """One agent, from its start to its end."""

    async def start(self) -> None:
        """Start the agent. A failure to start is reported as an end like any other."""

    async def wait_done(self) -> AgentEnd:
        """Wait for the task's result. An agent that takes follow-ups may still run afterwards."""

    async def ended(self) -> AgentEnd:
        """Wait until the agent and all processes it started have ended, and all their events are published."""

    @property
    def follows_up(self) -> bool:
        """Whether the agent still runs and takes messages, even after its task is done."""

    async def inject(self, message: InboxMessage) -> None:
        """Pass a message to the agent, in any state. Raises `MessageRefusedError`."""

    async def interrupt(self, message: str | None = None, /) -> None:
        """Stop the current turn, not the agent.

        `message` is the id of the message that requests it and is injected later: injecting it does not interrupt
        again.
        """

    async def stop(self, grace: float) -> None:
        """End the agent and all processes it started, by SIGKILL after `grace` seconds. An earlier result stays."""


_USAGE_FIELDS: Final = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_micro_usd")


class UsageTotals:
    """The total usage of an agent. Each usage event has the usage since the previous one."""

    def __init__(self) -> None:
        self.totals = dict.fromkeys(_USAGE_FIELDS, 0)
        """The totals, by their names in the event that ends an attempt."""

    def count(self, data: EventData) -> None:
        """Add an event, if it reports usage."""
        if isinstance(data, AgentUsage):
            for name in _USAGE_FIELDS:
                self.totals[name] = min(MAX_WHOLE, self.totals[name] + getattr(data, name))
