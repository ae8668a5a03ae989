"""`Herd`, the asynchronous client for programs and the `sandherd` command.

The exported names are imported on first use, so that the command starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.client.context import Context
    from sandherd.client.errors import HerdError, ServiceAwayError
    from sandherd.client.events.follower import EventFollower
    from sandherd.client.herd import Herd

__all__ = ["Context", "EventFollower", "Herd", "HerdError", "ServiceAwayError"]

_HOMES: Final = {
    "Context": "context",
    "EventFollower": "events.follower",
    "Herd": "herd",
    "HerdError": "errors",
    "ServiceAwayError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
