"""A whole stack for a measurement."""

import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

from sandherd.client import Context, Herd
from sandherd.stack.control import down, up


@asynccontextmanager
async def stack(settings: Mapping[str, str] | None = None) -> AsyncIterator[tuple[Herd, Path]]:
    """A stack of its own with these settings (environment variables): a client of it, and its home."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, patch.dict(os.environ, settings or {}):
        home = Path(directory)
        try:
            await up(home)
            async with Herd.connect(Context.resolve(home=home, environ={})) as herd:
                yield herd, home
        finally:
            await down(home)
