"""Loads the libraries of a service without modules that these import and no service uses.

uvicorn imports click for its command line, FastStream imports unittest for its test broker and
`http.server` for a page, and prometheus_client imports servers and clients of HTTP. Together they take 3 MiB of each
service's memory.
"""

import sys
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any, Final

from sandherd.hidden_modules import replaced


class _Unavailable:
    """Replaces the base class of a server or client that no service uses."""

    def __init__(self, *_arguments: object, **_named: object) -> None:
        raise TypeError(f"{type(self).__name__} is not available in a service")


def _on_first_call(module: str, name: str) -> Callable[..., Any]:
    """A function that loads the module, and calls its function or class of this name."""

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(module), name)(*arguments, **named)

    return call


_LIBRARIES: Final = ("faststream.asgi", "faststream.nats", "prometheus_client")
_REPLACED: Final[dict[str, dict[str, object]]] = {
    "http.server": {"BaseHTTPRequestHandler": _Unavailable},
    "unittest": {},
    "unittest.mock": {name: _on_first_call("unittest.mock", name) for name in ("AsyncMock", "MagicMock")},
    "urllib.request": dict.fromkeys(
        ("BaseHandler", "HTTPHandler", "HTTPRedirectHandler", "HTTPSHandler", "Request", "build_opener"), _Unavailable
    ),
    "wsgiref": {},
    "wsgiref.simple_server": dict.fromkeys(("WSGIRequestHandler", "WSGIServer", "make_server"), _Unavailable),
}
"""By module: its names that the libraries import. Modules that import them later get the real ones."""


def load_libraries() -> None:
    """Load uvicorn, prometheus_client and FastStream. No effect on those that are loaded already."""
    if "uvicorn" not in sys.modules:
        _load_uvicorn()
    with ExitStack() as stack:
        for name, attributes in _REPLACED.items():
            stack.enter_context(replaced(name, **attributes, __getattr__=partial(_real_attribute, name)))
        for name in _LIBRARIES:
            import_module(name)


def _real_attribute(module: str, name: str) -> Any:
    """An attribute that the replacement lacks, for another version of a library: it takes memory, but it works."""
    if name.startswith("__"):  # Python looks up such attributes while it imports a module
        raise AttributeError(name)
    replaced_now = [each for each in _REPLACED if each in sys.modules and sys.modules[each].__spec__ is None]
    replacements = {each: sys.modules.pop(each) for each in replaced_now}
    try:
        return getattr(import_module(module), name)
    finally:
        sys.modules.update(replacements)


def _load_uvicorn() -> None:
    """Load uvicorn without its command line, which is loaded on first use."""
    run, main = (_on_first_call("uvicorn.main", name) for name in ("run", "main"))
    with replaced("uvicorn.main", Server=None, main=main, run=run):
        import uvicorn
    vars(uvicorn)["Server"] = import_module("uvicorn.server").Server  # as an import of `uvicorn.main` would set it
