"""Ends processes that a killed supervisor has left, by process id and start time, never by name."""

import asyncio
import signal
from collections.abc import Iterable, Mapping
from typing import Final

from sandherd.contracts.subjects import Principal
from sandherd.process_signals import wait_ended
from sandherd.stack.home import Home, ProcessRecord, StackPhase, StackRecord, read_record
from sandherd.stack.sandbox_shutdown import end_sandboxes
from sandherd.stack.server_health import is_broker

_SPAWNER: Final = frozenset({Principal.SPAWNER.value})
_GRACE_SECONDS: Final = 10.0
"""How long a process may take to end before it is killed."""
_SIGNALS: Final = {"postgres": signal.SIGINT}
"""Signals for parts that are not ended by SIGTERM: Postgres would wait for its clients."""


async def end_leftovers(home: Home) -> list[str]:
    """End recorded processes that still run, the services first. Returns the names of their parts.

    Sandboxes keep running: the next spawner finds them.
    """
    processes = _alive_processes(read_record(home))
    stores = {name for name in processes if name == "postgres" or is_broker(name)}
    await _end_all(processes, processes.keys() - stores)
    await _end_all(processes, stores)
    return list(processes)


async def end_with_sandboxes(home: Home, outer: Mapping[str, str]) -> bool:
    """End the spawner, then its sandboxes, then the other recorded processes. Returns whether no sandbox is left.

    `outer` is the spawner's environment.
    """
    record = read_record(home)
    processes = _alive_processes(record)
    await _end_all(processes, processes.keys() & _SPAWNER)
    ended_in_order = record is None or record.phase is StackPhase.STOPPED
    all_ended = ended_in_order or await end_sandboxes(home, outer)
    await end_leftovers(home)
    return all_ended


def _alive_processes(record: StackRecord | None) -> dict[str, ProcessRecord]:
    return {name: process for name, process in record.processes.items() if process.alive} if record else {}


async def _end_all(processes: Mapping[str, ProcessRecord], names: Iterable[str]) -> None:
    await asyncio.gather(*(end(processes[name], _SIGNALS.get(name, signal.SIGTERM)) for name in names))


async def end(process: ProcessRecord, number: signal.Signals = signal.SIGTERM, grace: float = _GRACE_SECONDS) -> None:
    """End a process, even one that is not our child: send it `number`, and kill it after `grace` seconds."""
    for next_signal, seconds in ((number, grace), (signal.SIGKILL, None)):
        running = process.running
        if running is None:
            return
        running.signal(next_signal)
        if await wait_ended(running, seconds):
            return
