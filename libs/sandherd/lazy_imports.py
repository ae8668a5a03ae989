"""A fast start: modules that libraries import only because they are installed are loaded on first use, or never.

nats-py loads aiohttp, which it uses for websockets only, and structlog loads rich for coloured tracebacks, which JSON
logs don't have. Together that is 0.4 s of CPU and 12 MiB for each process.
"""

import gc
import os
import sys
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final

from sandherd.hidden_modules import hidden, replaced

_WEBSOCKETS: Final = ("aiohttp", "multidict")
_PLUGINS: Final = "pydantic.plugin._loader"
_RARELY: Final = (20_000, 20, 20)
_USUALLY: Final = (700, 10, 10)
"""Thresholds of the garbage collector; these are Python's own."""


class LazyModule:
    """A module that is loaded on first use. It is falsy if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return find_spec(self._name) is not None

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # Python's questions about a module that is being imported
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


def start_lean() -> None:
    """Stop pydantic from looking for plugins, and collect garbage rarely: what an import creates stays.

    An eighth of a start's CPU time. For programs, not libraries; call it before anything else is imported.
    """
    if os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1") == "1":
        sys.modules.setdefault(_PLUGINS, _no_plugins())
    gc.set_threshold(*_RARELY)


def _no_plugins() -> ModuleType:
    """Pydantic's module that finds its plugins, as it is if they are disabled.

    The real one loads `importlib.metadata`, and with it csv, zipfile and most of email.
    """
    module = ModuleType(_PLUGINS)
    module.get_plugins = lambda: ()  # type: ignore[attr-defined]  # an attribute of this module only
    return module


def _version(distribution: str) -> str:
    """Its version, from the name of its folder. Raises `LookupError` if it is not installed as a folder."""
    start = f"{distribution.replace('-', '_')}-"
    for folder in sys.path:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.startswith(start) and entry.name.endswith(".dist-info"):
                    return entry.name.removeprefix(start).removesuffix(".dist-info")
    raise LookupError(distribution)


class _LazyParser:
    """`email.parser.BytesParser`, which is loaded for the first header that JetStream parses."""

    def parsebytes(self, text: bytes, headersonly: bool = False) -> Any:  # noqa: FBT001, FBT002  # as in the original
        from email.parser import BytesParser

        return BytesParser().parsebytes(text, headersonly)


def end_start() -> None:
    """Collect garbage as usual from now on, but not what the imports have created. For programs that run long."""
    gc.freeze()
    gc.set_threshold(*_USUALLY)


def load_nats() -> None:
    """Load nats-py, and aiohttp only with the first websocket (a URL `ws://…`). No effect if nats-py is loaded."""
    if "nats" in sys.modules:
        return
    with (
        hidden(_WEBSOCKETS),
        replaced("email.parser", BytesParser=_LazyParser),
        replaced("importlib.metadata", version=_version),
    ):
        from nats.aio import transport
    for name in _WEBSOCKETS:
        setattr(transport, name, LazyModule(name))
