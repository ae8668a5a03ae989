"""For programs and people: `Herd`, the asynchronous client, and the `sandherd` command.

What stands here is loaded when it is first asked for, so that the command starts quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sandherd.client.context import Context
    from sandherd.client.errors import HerdError, ServiceAwayError
    from sandherd.client.following import Following
    from sandherd.client.herd import Herd

__all__ = ["Context", "Following", "Herd", "HerdError", "ServiceAwayError"]

_HOMES: Final = {
    "Context": "context",
    "Following": "following",
    "Herd": "herd",
    "HerdError": "errors",
    "ServiceAwayError": "errors",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
