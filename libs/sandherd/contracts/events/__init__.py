"""All event types. `EVENTS` maps a type's name to its class.

The modules are imported on first use: a program that shows the events of a task needs half of them, and defining a
class costs as much CPU time as reading hundreds of events.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sandherd.contracts.events import base
from sandherd.contracts.events.base import ArtifactRef, EventData

if TYPE_CHECKING:
    from sandherd.contracts.events.base import EVENTS

__all__ = ["EVENTS", "ArtifactRef", "EventData", "event_model", "events_of"]

_MODULES: Final[Mapping[str, tuple[str, ...]]] = {
    "agent": ("agent", "tools", "conversation", "access", "agent_server", "iteration"),
    "branch": ("branch",),
    "credential": ("credential",),
    "message": ("message",),
    "approval": ("message",),
    "monitor": ("monitor",),
    "sandbox": ("sandbox",),
    "subscription": ("subscription",),
    "task": ("task",),
    "webhook": ("webhook",),
}
"""The modules with the events of each domain, those with the most frequent events first."""
_FIRST_DOMAIN: Final = "agent"
"""The module whose events begin the documents; the others follow by name."""


def event_model(name: str) -> type[EventData] | None:
    """The class of an event type; None if this version does not have the type.

    Imports the modules of the type's domain, one after the other, until one of them defines the type.
    """
    found = base.EVENTS.get(name)
    for module in () if found else _MODULES.get(name.partition(".")[0], ()):
        import_module(f"{__name__}.{module}")
        if (found := base.EVENTS.get(name)) is not None:
            break
    return found


def events_of(module: str) -> dict[str, type[EventData]]:
    """The types that one module defines, by name."""
    home = import_module(f"{__name__}.{module}").__name__
    return {name: model for name, model in base.EVENTS.items() if model.__module__ == home}


def __getattr__(name: str) -> Any:
    if name != "EVENTS":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    for module in {module for modules in _MODULES.values() for module in modules}:
        import_module(f"{__name__}.{module}")
    # Documents have the order of the modules, not of the imports of a program.
    known = sorted(base.EVENTS.items(), key=lambda item: _position(item[1].__module__))
    base.EVENTS.clear()
    base.EVENTS.update(known)
    globals()[name] = base.EVENTS
    return base.EVENTS


def _position(module: str) -> tuple[bool, bool, str]:
    own, _, name = module.rpartition(".")
    return own != __name__, name != _FIRST_DOMAIN, name
