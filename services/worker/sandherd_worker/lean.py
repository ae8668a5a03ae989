"""A light start: what our libraries load only because it is installed beside us stays out.

nats-py loads aiohttp for websockets, and structlog loads rich for coloured tracebacks; in an environment that the
worker shares with services and tools, this is a third of a second and 14 MiB for nothing.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final

_EXTRAS: Final = ("rich", "better_exceptions")
_WEBSOCKETS: Final = "aiohttp"


def start_lean(environ: Mapping[str, str]) -> None:
    """Call before anything else is imported."""
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")
    needed = environ.get("NATS_URL", "").startswith("ws")
    for name in _EXTRAS if needed else (*_EXTRAS, _WEBSOCKETS):
        sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # Python's own way to say: not installed
