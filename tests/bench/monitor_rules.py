"""The CPU time that the monitor's rules take.

Events are read and folded, and the rules are evaluated for what they changed, as the monitor does; `monitor.rate` with
a real broker, the others without one. Every sandbox has the same history: calls with results of 1.5 KB, half of them
repeated, and other events.
"""

import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.herd import Herd
from monitor.main import collect_rarely
from monitor.urgency import is_urgent
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from tests.bench import monitor_decisions, monitor_reader
from tests.bench.recorder import Recorder

FEW: Final = 100
MANY: Final = 10_000
_READ: Final = 300
"""Sandboxes whose events are read from a broker."""
_ROUNDS: Final = 12
_SHORT: Final = 2
"""The number of rounds of the history with many sandboxes, whose events must fit in memory."""
_RUNS: Final = 3
_BEGIN: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)


def _history(sandbox: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "agent.started", {"timestamp": _BEGIN, "sdk": "command", "task": "t", "task_description_length": 1}
    for number in range(_ROUNDS):
        key, given = f"call-{number}", {"command": f"make {number // 2}"}
        yield "agent.turn_started", {}
        yield "agent.thinking", {"content": "x" * 400, "content_length": 400}
        yield "agent.tool_use", {"tool": "Bash", "tool_use_id": key, "input": given}
        yield "agent.tool_result", {"tool_use_id": key, "result": f"{number // 2}" * 1500}
        yield "agent.message", {"content": "x" * 800, "content_length": 800}
        yield "agent.heartbeat", {"timestamp": _BEGIN}


def _documents(sandboxes: int, rounds: int = _ROUNDS) -> list[tuple[str, bytes]]:
    made = []
    for sequence in range(1 + 6 * rounds):
        for number in range(sandboxes):
            sandbox = f"sbx-{number}"
            kind, fields = _HISTORY[sequence]
            event = wrap(
                EVENTS[kind](**fields),
                kind,
                source=f"/sandherd/sandbox/{sandbox}",
                sequence=sequence + 1,
                project="p1",
                subject=sandbox,
                sandboxid=sandbox,
                taskid="task-1",
                time=_BEGIN,
            )
            made.append((f"sandherd.v1.event.p1.{sandbox}.{kind}", event.model_dump_json().encode()))
    return made


_HISTORY: Final = list(_history("sbx"))


def _read(documents: list[tuple[str, bytes]]) -> list[ObservedEvent]:
    found = (
        read(subject, document, number + 1, _BEGIN + timedelta(milliseconds=number))
        for number, (subject, document) in enumerate(documents)
    )
    return [seen for seen in found if seen is not None]


def _evaluate(herd: Herd, seen: ObservedEvent) -> None:
    """Fold an event, and evaluate what it has changed, as the monitor does when it reads it."""
    before = herd.live.get((seen.project, seen.entity))
    state = herd.fold(seen)
    if state is not None:
        is_urgent(before, state, seen, herd.rules)


def _fold(events: list[ObservedEvent]) -> Herd:
    """The state of a herd after these events."""
    herd = Herd()
    for seen in events:
        _evaluate(herd, seen)
    return herd


def _shortest(work: Callable[[], object]) -> float:
    """The CPU seconds of the fastest of some runs."""
    times = []
    for _ in range(_RUNS):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


def _bytes(documents: list[tuple[str, bytes]]) -> int:
    """The memory of the state of a sandbox, without the ids and times that it shares with events."""
    tracemalloc.start()
    events = _read(documents)
    before, _ = tracemalloc.get_traced_memory()
    herd = _fold(events)
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) // len(herd.live)


async def measure(recorder: Recorder) -> None:
    """Measure CPU to evaluate beside reading only, that of many sandboxes beside few, and memory per sandbox.

    `monitor.fold` has no broker: decoding, folding and evaluating beside decoding only.
    """
    collect_rarely()  # as the service does at its start
    await monitor_reader.measure(recorder, _documents(_READ), lambda: partial(_evaluate, Herd()))
    for _ in recorder.each("monitor.fold"):
        decoding, folding = _read_cost(1000), _fold_cost(1000, _ROUNDS)
        recorder.add("monitor.fold", 1 / (decoding + folding), 1 / decoding)
    for _ in recorder.each("monitor.cost"):
        many, few = (_fold_cost(sandboxes, _SHORT) for sandboxes in (MANY, FEW))
        recorder.add("monitor.cost", many * 1e6, few * 1e6)
    for _ in recorder.each("monitor.memory"):
        recorder.add("monitor.memory", _bytes(_documents(FEW)) / 1024)
    await monitor_decisions.measure(recorder)


def _read_cost(sandboxes: int) -> float:
    documents = _documents(sandboxes)
    return _shortest(lambda: _read(documents)) / len(documents)


def _fold_cost(sandboxes: int, rounds: int) -> float:
    events = _read(_documents(sandboxes, rounds))
    return _shortest(lambda: _fold(events)) / len(events)
