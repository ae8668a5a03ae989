"""Ending what a killed supervisor left behind, by process id and start time, and never by a name."""

import asyncio
import os
import signal
from typing import Final

from sandherd.stack.child import ended
from sandherd.stack.home import Home, ProcessRecord, read_record

_FOUNDATION: Final = frozenset({"nats", "postgres"})
_GRACE: Final = 10.0
_SIGNALS: Final = {"postgres": signal.SIGINT}
"""How each is asked to end; SIGTERM would have Postgres wait for its clients."""


async def end_leftovers(home: Home) -> list[str]:
    """End what is written down and still runs, the services first. Returns the names of what there was."""
    record = read_record(home)
    if record is None:
        return []
    left = {name: process for name, process in record.processes.items() if process.alive}
    for names in (left.keys() - _FOUNDATION, left.keys() & _FOUNDATION):
        await asyncio.gather(*(end(left[name], _SIGNALS.get(name, signal.SIGTERM)) for name in names))
    return list(left)


async def end(process: ProcessRecord, number: signal.Signals = signal.SIGTERM, grace: float = _GRACE) -> None:
    """End a process that need not be our child: ask it, and kill it if it has not ended after `grace` seconds."""
    for sent, seconds in ((number, grace), (signal.SIGKILL, None)):
        if not process.alive:
            return
        os.kill(process.pid, sent)
        try:
            await asyncio.wait_for(ended(process.pid), seconds)
        except TimeoutError:
            continue
