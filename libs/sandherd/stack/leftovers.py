"""Ending what a killed supervisor left behind, by process id and start time, and never by a name."""

import asyncio
import os
import signal
from collections.abc import Iterable, Mapping
from typing import Final

from sandherd.contracts.subjects import Principal
from sandherd.stack.child import ended
from sandherd.stack.cluster import is_broker
from sandherd.stack.home import Home, Phase, ProcessRecord, StackRecord, read_record
from sandherd.stack.sandboxes import end_sandboxes

_SPAWNER: Final = frozenset({Principal.SPAWNER.value})
_GRACE: Final = 10.0
_SIGNALS: Final = {"postgres": signal.SIGINT}
"""How each is asked to end; SIGTERM would have Postgres wait for its clients."""


async def end_leftovers(home: Home) -> list[str]:
    """End what is written down and still runs, the services first. Returns the names of what there was.

    Sandboxes live on: the next spawner finds them.
    """
    left = _left(read_record(home))
    foundation = {name for name in left if name == "postgres" or is_broker(name)}
    await _end_all(left, left.keys() - foundation)
    await _end_all(left, foundation)
    return list(left)


async def end_with_sandboxes(home: Home, outer: Mapping[str, str]) -> bool:
    """The same with the sandboxes, between their spawner and the rest. Returns whether none of them is left.

    `outer` is the spawner's environment.
    """
    record = read_record(home)
    left = _left(record)
    await _end_all(left, left.keys() & _SPAWNER)
    ended_in_order = record is None or record.phase is Phase.STOPPED
    gone = ended_in_order or await end_sandboxes(home, outer)
    await end_leftovers(home)
    return gone


def _left(record: StackRecord | None) -> dict[str, ProcessRecord]:
    return {name: process for name, process in record.processes.items() if process.alive} if record else {}


async def _end_all(left: Mapping[str, ProcessRecord], names: Iterable[str]) -> None:
    await asyncio.gather(*(end(left[name], _SIGNALS.get(name, signal.SIGTERM)) for name in names))


async def end(process: ProcessRecord, number: signal.Signals = signal.SIGTERM, grace: float = _GRACE) -> None:
    """End a process that need not be our child: ask it, and kill it if it has not ended after `grace` seconds."""
    for sent, seconds in ((number, grace), (signal.SIGKILL, None)):
        if not process.alive:
            return
        os.kill(process.pid, sent)
        try:
            async with asyncio.timeout(seconds):
                await ended(process.pid)
        except TimeoutError:
            continue
