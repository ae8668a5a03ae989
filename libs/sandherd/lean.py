"""A light start: what others load only because it is installed beside them is loaded when it is used, or not at all.

nats-py loads aiohttp, which it uses for websockets only, and structlog loads rich for coloured tracebacks, which a log
in JSON has not. Together that is 0.4 s of CPU and 12 MiB for each process.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

_WEBSOCKETS: Final = ("aiohttp", "multidict")
_COLOURS: Final = ("rich", "better_exceptions")


class Later:
    """A module that is loaded when something of it is used. It is false if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return find_spec(self._name) is not None

    def __getattr__(self, attribute: str) -> Any:
        return getattr(import_module(self._name), attribute)


def start_lean() -> None:
    """For programs, not libraries: pydantic need not look for plugins. Call it before anything else is imported."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")


def load_nats() -> None:
    """Load nats-py, and aiohttp with its first websocket (a URL as `ws://…`). Loaded already, it stays as it is."""
    if "nats" in sys.modules:
        return
    with _hidden(_WEBSOCKETS):
        from nats.aio import transport
    for name in _WEBSOCKETS:
        setattr(transport, name, Later(name))


def load_structlog() -> None:
    """Load structlog without what colours its tracebacks. Whoever prints tables loads rich for that as ever."""
    with _hidden(_COLOURS):
        import_module("structlog")


@contextmanager
def _hidden(names: tuple[str, ...]) -> Iterator[None]:
    """Modules that are not to be found meanwhile, unless they are loaded."""
    hidden = [name for name in names if name not in sys.modules]
    # Python's own way to say: not installed.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None is allowed
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
