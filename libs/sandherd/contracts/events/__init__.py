"""All event types. `EVENTS` maps a type's name to its class."""

from sandherd.contracts.events import (
    access,
    agent,
    agent_server,
    branch,
    conversation,
    credential,
    iteration,
    message,
    monitor,
    sandbox,
    subscription,
    task,
    tools,
)
from sandherd.contracts.events.base import EVENTS, ArtifactRef, EventData

__all__ = [
    "EVENTS",
    "ArtifactRef",
    "EventData",
    "access",
    "agent",
    "agent_server",
    "branch",
    "conversation",
    "credential",
    "iteration",
    "message",
    "monitor",
    "sandbox",
    "subscription",
    "task",
    "tools",
]
