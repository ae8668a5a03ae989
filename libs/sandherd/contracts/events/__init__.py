"""Every event there is. `EVENTS` maps a type's name to its class."""

from sandherd.contracts.events import agent, iteration, lifecycle, message, monitor, tools
from sandherd.contracts.events.base import EVENTS, ArtifactRef, EventData

__all__ = ["EVENTS", "ArtifactRef", "EventData", "agent", "iteration", "lifecycle", "message", "monitor", "tools"]
