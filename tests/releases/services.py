"""The services of whatever version's Python runs this, in one process, until its standard input ends.

    python -P services.py FILE < DESCRIPTION

The description is one line of JSON: the settings of each service, and the command of the spawner's workers. The file is
there once they run.
"""

import asyncio
import importlib
import json
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from sandherd.settings import Settings
from sandherd.telemetry import logs

MODULES: Final = {"event-ingest": "event_ingest", "message-relay": "message_relay"}


async def serve(settings: dict[str, Any]) -> None:
    """Run them, and say so."""
    async with AsyncExitStack() as stack:
        for name, values in settings["services"].items():
            compose = importlib.import_module(f"{MODULES.get(name, name)}.main").compose
            if name == "spawner":
                compose = partial(compose, worker=tuple(settings["worker"]))
            await stack.enter_async_context(compose(Settings(**values)).running())
        Path(sys.argv[1]).touch()
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logs.configure("services", "info")
    uvloop.run(serve(json.loads(sys.stdin.readline())))
