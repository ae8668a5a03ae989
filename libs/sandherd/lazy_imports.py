"""Makes programs start faster: modules that libraries import but rarely use are loaded on first use, or never.

nats-py imports aiohttp, which it uses for websockets only, and structlog imports rich for coloured tracebacks, which
JSON logs don't have: together 0.4 s of CPU time and 12 MiB for each process. JetStream's client takes a tenth of the
CPU time of a command that only sends requests. Types of pydantic's core that only type checkers need are not evaluated.
"""

import gc
import os
import sys
import typing
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, Final

from sandherd.hidden_modules import hidden, replaced

_WEBSOCKETS: Final = ("aiohttp", "multidict")
_JETSTREAM: Final = "nats.js"
_JETSTREAM_NAMES: Final = {"JetStreamContext": "client", "JetStreamManager": "manager"}
"""The names that the package exports, and the modules that define them."""
_PLUGINS: Final = "pydantic.plugin._loader"
_AT_START: Final = (1_000_000, 20, 20)
"""Thresholds of the garbage collector during a start, which creates fewer objects: nothing is collected."""
_RARELY: Final = (20_000, 20, 20)
_USUALLY: Final = (700, 10, 10)
"""Python's default thresholds."""


class LazyModule:
    """A module that is loaded on first use. It is falsy if it is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __bool__(self) -> bool:
        return find_spec(self._name) is not None

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # Python looks up such attributes while it imports a module
            raise AttributeError(attribute)
        return getattr(import_module(self._name), attribute)


class _Headers:
    """Replaces `nats.js.api.Header`: it has the names that nats-py's client uses for each reply, and loads the others.

    Modules that are imported before `nats.js.api` is loaded keep this replacement.
    """

    STATUS: Final = "Status"
    DESCRIPTION: Final = "Description"
    CONSUMER_STALLED: Final = "Nats-Consumer-Stalled"

    def __getattr__(self, name: str) -> object:
        return getattr(import_module(f"{_JETSTREAM}.api").Header, name)


class _LazyApi(LazyModule):
    """Replaces `nats.js.api`, and loads it only for other names than `Header`: it takes 30 ms of CPU time and 2 MiB."""

    Header = _Headers()


def start_lean() -> None:
    """Save a fifth of a start's CPU time: disable pydantic's plugins and garbage collection, and load pydantic's core.

    Programs call it before they import anything else; libraries must not call it.
    """
    gc.set_threshold(*_AT_START)
    if os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1") == "1":
        sys.modules.setdefault(_PLUGINS, _no_plugins())
    if "pydantic_core" not in sys.modules:
        with _plain_dictionaries():
            import pydantic_core  # noqa: F401  # loaded here so that its typed dictionaries are plain ones


class _PlainDict(dict[str, Any]):
    """Replaces `TypedDict`: its fields are not evaluated, and a call of it returns a `dict`, too."""

    def __new__(cls, *items: Any, **fields: Any) -> Any:
        return dict(*items, **fields)

    def __init_subclass__(cls, *, total: bool = True) -> None:
        super().__init_subclass__()


@contextmanager
def _plain_dictionaries() -> Iterator[None]:
    """Replace `TypedDict` by `_PlainDict` until the block ends.

    pydantic_core has 90 typed dictionaries, whose 700 fields only type checkers read. They take a fifteenth of a
    start's CPU time.
    """
    # pydantic takes `TypedDict` from either module. `typing_extensions` is only a dependency of pydantic.
    homes: tuple[Any, ...] = (typing, import_module("typing_extensions"))
    usual = [home.TypedDict for home in homes]
    for home in homes:
        home.TypedDict = _PlainDict
    try:
        yield
    finally:
        for home, kind in zip(homes, usual, strict=True):
            home.TypedDict = kind


def _no_plugins() -> ModuleType:
    """A replacement of pydantic's module that finds plugins. It finds none.

    The real module imports `importlib.metadata`, and with it csv, zipfile and most of email.
    """
    module = ModuleType(_PLUGINS)
    module.get_plugins = lambda: ()  # type: ignore[attr-defined]  # an attribute of this module only
    return module


def version(distribution: str) -> str:
    """The version of a distribution, if possible from the name of its folder.

    `importlib.metadata`, which is used otherwise, imports email and zipfile, which take 1.4 MiB.
    """
    try:
        return _version(distribution)
    except LookupError:
        from importlib.metadata import version as found

        return found(distribution)


def _version(distribution: str) -> str:
    """The version of a distribution, from the name of its folder. Raises `LookupError` if it has no folder."""
    start = f"{distribution.replace('-', '_')}-"
    for folder in sys.path:
        with suppress(OSError), os.scandir(folder or ".") as entries:
            for entry in entries:
                if entry.name.startswith(start) and entry.name.endswith(".dist-info"):
                    return entry.name.removeprefix(start).removesuffix(".dist-info")
    raise LookupError(distribution)


class _LazyParser:
    """Replaces `email.parser.BytesParser`, which is loaded for the first header that JetStream parses."""

    def parsebytes(self, text: bytes, headersonly: bool = False) -> Any:  # noqa: FBT001, FBT002  # as in the original
        from email.parser import BytesParser

        return BytesParser().parsebytes(text, headersonly)


def end_start(*, short: bool = False) -> None:
    """Enable garbage collection, but not for the objects that imports have created.

    With `short` it is less frequent than usual, for programs that end soon or wait most of their time.
    """
    gc.freeze()
    gc.set_threshold(*(_RARELY if short else _USUALLY))


def load_nats() -> None:
    """Load nats-py without aiohttp, which is loaded with the first websocket (a URL `ws://…`), and without JetStream.

    JetStream's client is loaded on first use. No effect if nats-py is loaded already.
    """
    if "nats" in sys.modules:
        return
    sys.modules[_JETSTREAM] = package = _lazy_jetstream()
    with (
        hidden(_WEBSOCKETS),
        replaced("email.parser", BytesParser=_LazyParser),
        replaced("importlib.metadata", version=_version),
    ):
        from nats.aio import transport
    sys.modules["nats"].js = package  # type: ignore[attr-defined]  # as an import would set it
    for name in _WEBSOCKETS:
        setattr(transport, name, LazyModule(name))


def _lazy_jetstream() -> ModuleType:
    """The package `nats.js`, changed so that it loads its modules, which have 40 data classes, on first use."""
    nats = find_spec("nats")
    spec = None if nats is None else PathFinder.find_spec(_JETSTREAM, nats.submodule_search_locations)
    if spec is None:
        raise ModuleNotFoundError(_JETSTREAM, name=_JETSTREAM)
    package = module_from_spec(spec)
    package.api = _LazyApi(f"{_JETSTREAM}.api")  # type: ignore[attr-defined]  # as an import would set it
    package.__getattr__ = _of_jetstream  # type: ignore[method-assign]  # PEP 562
    return package


def _of_jetstream(name: str) -> Any:
    if name not in _JETSTREAM_NAMES:
        raise AttributeError(f"module {_JETSTREAM!r} has no attribute {name!r}")
    return getattr(import_module(f"{_JETSTREAM}.{_JETSTREAM_NAMES[name]}"), name)
