"""What the monitor's rules cost, by the processor's own clock: `python -m tests.bench.judging [sandboxes]`.

Prints microseconds to read an event, and to fold it and judge what it changed; milliseconds to judge 10,000 sandboxes
at one time; and bytes of the state of a sandbox. Each time is the shortest of several runs, as other programs can only
make it longer. Every sandbox has the same history: calls with results of 1.5 KB, half of them repeated, and others.
"""

import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from monitor import guardian
from monitor.event_decoder import read
from monitor.facts import ObservedEvent
from monitor.findings import find
from monitor.herd import Herd
from monitor.urgency import is_urgent
from sandherd.contracts.envelope import wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.names import DerivedIds

SANDBOXES: Final = 1000
_ROUNDS: Final = 12
_RUNS: Final = 5
_JUDGED: Final = 10_000
_BEGIN: Final = datetime(2026, 11, 20, 12, tzinfo=UTC)
_IDS: Final = DerivedIds(b"of the monitors")


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


def _documents(sandboxes: int) -> list[tuple[str, bytes]]:
    made = []
    for sequence in range(1 + 6 * _ROUNDS):
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


def _fold(events: list[ObservedEvent]) -> Herd:
    """A herd after these events, each judged as the monitor does when it reads it."""
    herd = Herd()
    for seen in events:
        before = herd.live.get((seen.project, seen.entity))
        state = herd.fold(seen)
        if state is not None:
            is_urgent(before, state, seen, herd.rules)
    return herd


def _judge(herd: Herd, now: datetime) -> None:
    for state in list(herd.live.values()):
        guardian.outcome(state, herd.rules)
        guardian.steer(state, now, herd.rules, _IDS)
        guardian.to_send(state, now)
        find(state, now, herd.rules, _BEGIN - timedelta(days=1))


def _shortest(work: Callable[[], object]) -> float:
    """Seconds of a processor."""
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


def main() -> None:
    """Measure, and print the figures."""
    sandboxes = int(sys.argv[1]) if len(sys.argv) > 1 else SANDBOXES
    documents = _documents(sandboxes)
    events = _read(documents)
    reading = _shortest(lambda: _read(documents)) / len(documents)
    folding = _shortest(lambda: _fold(events)) / len(events)
    herd, now = _fold(events), events[-1].at + timedelta(seconds=1)
    judging = _shortest(lambda: _judge(herd, now)) / sandboxes * _JUDGED
    print(f"read {reading * 1e6:.1f} µs, fold {folding * 1e6:.1f} µs, judge {judging * 1e3:.1f} ms", end=", ")
    print(f"{_bytes(documents)} bytes")


if __name__ == "__main__":
    main()
