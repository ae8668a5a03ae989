"""Every event there is. `EVENTS` maps a type's name to its class."""

from sandherd.contracts.events import access, agent, branch, iteration, lifecycle, message, monitor, serving, tools
from sandherd.contracts.events.base import EVENTS, ArtifactRef, EventData

__all__ = [
    "EVENTS",
    "ArtifactRef",
    "EventData",
    "access",
    "agent",
    "branch",
    "iteration",
    "lifecycle",
    "message",
    "monitor",
    "serving",
    "tools",
]
