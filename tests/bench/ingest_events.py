"""The events that both sides of the ingest bench receive: the same documents, of a herd at work."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.events import EVENTS
from sandherd.contracts.subjects import event_subject

PROJECT: Final = "default"
SANDBOXES: Final = tuple(f"sbx-{place:02d}" for place in range(8))


@dataclass(frozen=True)
class BenchEvent:
    """One event as it is published: its sandbox, id, subject and document."""

    sandbox: str
    id: str
    subject: str
    document: bytes


def make_events(count: int, first: int = 1) -> list[BenchEvent]:
    """Make `count` events, of all sandboxes in turn, numbered from `first` in each."""
    return [_numbered_event(place, first) for place in range(count)]


def _numbered_event(place: int, first: int) -> BenchEvent:
    sandbox = SANDBOXES[place % len(SANDBOXES)]
    event = _event(sandbox, first + place // len(SANDBOXES), place)
    subject = event_subject(PROJECT, sandbox, event.type)
    return BenchEvent(sandbox, str(event.id), subject, event.to_json())


def _event(sandbox: str, sequence: int, place: int) -> Envelope[Any]:
    """Make one event: a tool call, its result or a message, which are most of a herd's events."""
    call, kind = f"call-{sequence // 3}", sequence % 3
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("agent.tool_use", {"tool": "Bash", "tool_use_id": call, "input": {"command": "pytest -q " * 8}}),
        ("agent.tool_result", {"tool_use_id": call, "result": "3 passed in 0.12s\n" * 12}),
        ("agent.message", {"content": "The tests pass; next I look at the other file. " * 4, "content_length": 188}),
    ]
    event_type, data = kinds[kind]
    return wrap(
        EVENTS[event_type](**data),
        event_type,
        source=f"/sandherd/sandbox/{sandbox}",
        sequence=sequence,
        project=PROJECT,
        subject=sandbox,
        time=datetime.now(UTC),
        taskid=f"task-{sandbox[4:]}",
        sandboxid=sandbox,
        traceparent=f"00-{place:032x}-{place + 1:016x}-01",
    )


def write_events(path: Path, events: list[BenchEvent]) -> None:
    """Write the events for the process that publishes them."""
    with path.open("w") as file:
        for bench_event in events:
            file.write(
                json.dumps([bench_event.sandbox, bench_event.id, bench_event.subject, bench_event.document.decode()])
                + "\n"
            )


def read_events(path: Path) -> Iterator[BenchEvent]:
    """Read the events that `write_events` wrote."""
    with path.open() as file:
        for line in file:
            sandbox, identifier, subject, document = json.loads(line)
            yield BenchEvent(sandbox, identifier, subject, document.encode())


def write_moments(path: Path, moments: dict[str, float]) -> None:
    """Write the time of each event, by its id, on the system's monotonic clock."""
    path.write_text(json.dumps(moments))


def read_moments(path: Path) -> dict[str, float]:
    """Read the times that `write_moments` wrote."""
    return dict(json.loads(path.read_text()))
