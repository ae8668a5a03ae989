"""The times of a recording: scripted sessions take seconds, so the pauses for which they stand are added afterwards.

Each line of a file in the sandbox states when the clock was advanced, and by how many seconds. The recorder adds a line
for each response of the model, the sandbox's `sleep` and its stand-ins of build tools for the time they would take.
"""

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Final

from sandherd.contracts.names import new_uuid_at

HEARTBEAT: Final = "agent.heartbeat"
BEAT: Final = timedelta(seconds=30)
_STATUSES: Final = {"agent.turn_started": "running", "agent.waiting": "waiting"}
"""The status in heartbeats after these events."""

Event = dict[str, Any]


@dataclass(frozen=True)
class Clock:
    """The advances of the clock: the machine's time in POSIX seconds, and the sum of the pauses up to then."""

    moments: Sequence[float]
    sums: Sequence[float]
    steps: Sequence[float] = ()
    """The times at which the model reached a step."""
    faults: Sequence[float] = ()
    """The times at which the model reached a step at fault."""

    @classmethod
    def read(cls, text: str) -> "Clock":
        """Read the clock from a file with a line for each pause."""
        lines = sorted((float(at), float(seconds), word) for at, seconds, *word in map(str.split, text.splitlines()))
        faults = [at for at, _, word in lines if word == ["fault"]]
        steps = [at for at, _, word in lines if word]
        return cls([at for at, _, _ in lines], list(accumulate(seconds for _, seconds, _ in lines)), steps, faults)

    def advance(self, at: float) -> float:
        """The seconds of all pauses up to that time."""
        before = bisect_right(self.moments, at)
        return self.sums[before - 1] if before else 0.0

    def shifted(self, at: datetime) -> datetime:
        """The time in the recording for a time of the machine."""
        return at + timedelta(seconds=self.advance(at.timestamp()))

    def longer(self, end: datetime, seconds: float) -> float:
        """The duration in the recording of what took `seconds` until `end`."""
        stamp = end.timestamp()
        return round(seconds + self.advance(stamp) - self.advance(stamp - seconds), 3)


def retime(events: Iterable[Event], clock: Clock) -> list[Event]:
    """The events with the clock's times and durations, a heartbeat each 30 s, and sequence numbers without gaps."""
    shifted = [_shift(event, clock) for event in events]
    beats = [event for event in shifted if event["type"] == HEARTBEAT]
    others = [event for event in shifted if event["type"] != HEARTBEAT]
    return _numbered(_with_beats(others, beats[0]) if beats else others)


def _shift(event: Event, clock: Clock) -> Event:
    end = datetime.fromisoformat(event["time"])
    data = dict(event["data"])
    for name in data.keys() & {"duration_ms", "subagent_duration_ms"}:
        if data[name] is not None:
            data[name] = round(clock.longer(end, data[name] / 1000) * 1000, 3)
    for name in data.keys() & {"duration_seconds", "elapsed_seconds"}:
        if data[name] is not None:
            data[name] = clock.longer(end, data[name])
    if "timestamp" in data:
        data["timestamp"] = _text(clock.shifted(datetime.fromisoformat(data["timestamp"])))
    return {**event, "time": _text(clock.shifted(end)), "data": data}


def _with_beats(events: list[Event], like: Event) -> list[Event]:
    found: list[Event] = []
    due, status = datetime.fromisoformat(like["time"]), like["data"]["status"]
    for event in events:
        at = datetime.fromisoformat(event["time"])
        while due <= at:
            found.append(_beat(like, due, len(found), status))
            due += BEAT
        found.append(event)
        status = _STATUSES.get(event["type"], status)
    return found


def _beat(like: Event, at: datetime, count: int, status: str) -> Event:
    data = {**like["data"], "timestamp": _text(at), "event_count": count, "status": status}
    return {**like, "id": str(new_uuid_at(at)), "time": _text(at), "data": data}


def _numbered(events: list[Event]) -> list[Event]:
    return [{**event, "sequence": number} for number, event in enumerate(events, 1)]


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def written(events: Iterable[Event]) -> bytes:
    """The events as `sandherd events -o jsonl` prints them: one event in each line."""
    return b"".join(json.dumps(event, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for event in events)
