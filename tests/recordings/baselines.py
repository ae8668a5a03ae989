"""The findings of the published conditions of two other detectors: `python -m tests.recordings.baselines`.

The conditions are those of OpenHands' SDK (`conversation/stuck_detector.py`, commit 611629e) and of Gemini CLI
(`services/loopDetectionService.ts`, commit 5411f11) without its model; this code is Sandherd's. Where their events
differ from ours, the more generous reading is used: inputs are compared without `description`, which only Claude's
tools have; a failed result is an error for OpenHands, which has separate exit statuses. Both stop a session when they
find something, so each counts once per session.
"""

import hashlib
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from tests.recordings.sessions import events, labels

Event = dict[str, Any]


@dataclass(frozen=True)
class Entry:
    """One entry of a detector's history: an action, its observation, a message of the agent or of its user."""

    kind: str
    value: str = ""
    failed: bool = False
    sequence: int = 0


@dataclass
class History:
    """The entries of a session; a text belongs to the call that follows it in the same response of the model."""

    thought: str = ""

    def entries(self, session: Iterable[Event]) -> Iterator[Entry]:
        """The entries of the session, in order."""
        for event in session:
            data, at = event["data"], event["sequence"]
            match event["type"]:
                case "agent.message":
                    yield from self._message(at)
                    self.thought = data["content"]
                case "agent.tool_use" if data.get("event_subtype") not in {"program", "subagent"}:
                    yield Entry("action", _call(data) + self.thought, sequence=at)
                    self.thought = ""
                case "agent.tool_result":
                    yield Entry("observation", data["result"], bool(data.get("is_error")), at)
                case "agent.model_call_started" | "agent.turn_completed" | "agent.thinking":
                    yield from self._message(at)
                case "agent.message_injected" if data["message_type"] != "approval":
                    yield from self._message(at)
                    yield Entry("user", sequence=at)

    def _message(self, at: int) -> Iterator[Entry]:
        if self.thought:
            yield Entry("message", self.thought, sequence=at)
        self.thought = ""


def _call(data: dict[str, Any]) -> str:
    given = {name: value for name, value in data["input"].items() if name != "description"}
    return f"{data['tool']} {json.dumps(given, sort_keys=True)}"


# --- OpenHands

WINDOW: Final = 20
"""The number of events that are examined."""
EQUAL, ERRORS, MESSAGES, ALTERNATING = 4, 3, 3, 6


def openhands(session: Sequence[Event]) -> int | None:
    """The sequence of the event at which OpenHands' detector finds the agent stuck; None if it does not."""
    history: list[Entry] = []
    for entry in History().entries(session):
        history.append(entry)
        recent = history[-WINDOW:]
        last_user = max((at for at, one in enumerate(recent) if one.kind == "user"), default=-1)
        if is_stuck(recent[last_user + 1 :]):
            return entry.sequence
    return None


def is_stuck(recent: Sequence[Entry]) -> bool:
    """Whether there are four equal actions with equal results, three equal failures, three messages or two pairs."""
    actions = [one for one in recent if one.kind == "action"]
    results = [one for one in recent if one.kind == "observation"]
    if _are_equal(actions[-EQUAL:], EQUAL) and _are_equal(results[-EQUAL:], EQUAL):
        return True
    if (
        _are_equal(actions[-ERRORS:], ERRORS)
        and len(results) >= ERRORS
        and all(one.failed for one in results[-ERRORS:])
    ):
        return True
    if len(recent) >= MESSAGES and all(one.kind == "message" for one in recent[-MESSAGES:]):
        return True
    return _alternates(actions[-ALTERNATING:]) and _alternates(results[-ALTERNATING:])


def _are_equal(entries: Sequence[Entry], count: int) -> bool:
    return len(entries) == count and len({one.value for one in entries}) == 1


def _alternates(entries: Sequence[Entry]) -> bool:
    values = [one.value for one in entries]
    return len(values) == ALTERNATING and values[2:] == values[:-2]


# --- Gemini CLI

CYCLE, LONGEST_CYCLE = 5, 5
CHUNK, CHUNKS, PERIODS, CHARACTERS = 50, 10, 5, 5_000
_ELEMENT: Final = re.compile(r"```|^\s*(?:\|.*\||[|+-]{3,}|[*+-]\s|\d+\.\s|#+\s|>\s)", re.MULTILINE)
"""A fence, table, list, heading or quotation, after which chanting is counted from 0."""


def gemini(session: Sequence[Event]) -> int | None:
    """The sequence of the event at which Gemini CLI's detector finds a loop; None if it does not."""
    calls: list[str] = []
    for event in session:
        match event["type"]:
            case "agent.tool_use" if event["data"].get("event_subtype") != "program":
                calls.append(hashlib.sha256(_call(event["data"]).encode()).hexdigest())
                if is_cycle(calls):
                    return int(event["sequence"])
            case "agent.message" if chants(event["data"]["content"]):
                return int(event["sequence"])
            case "agent.message_injected" if event["data"]["message_type"] != "approval":
                calls.clear()
    return None


def is_cycle(calls: Sequence[str]) -> bool:
    """Whether a block of one to five calls comes five times at the end; results do not count."""
    for length in range(1, LONGEST_CYCLE + 1):
        tail = list(calls[-length * CYCLE :])
        if len(tail) == length * CYCLE and tail == tail[:length] * CYCLE:
            return True
    return False


def chants(text: str) -> bool:
    """Whether a chunk of 50 characters comes ten times close to each other, outside of code, tables and lists."""
    fenced = False
    for line in text.splitlines(keepends=True) if _ELEMENT.search(text) else [text]:
        fenced ^= line.count("```") % 2 == 1
        if not fenced and not _ELEMENT.search(line) and _repeats(line[-CHARACTERS:]):
            return True
    return False


def _repeats(text: str) -> bool:
    places: dict[str, list[int]] = defaultdict(list)
    for at in range(len(text) - CHUNK + 1):
        found = places[text[at : at + CHUNK]]
        found.append(at)
        last = found[-CHUNKS:]
        if len(last) == CHUNKS and (last[-1] - last[0]) / (CHUNKS - 1) <= CHUNK * PERIODS:
            periods = {text[start:end] for start, end in pairwise(last)}
            if len(periods) <= PERIODS:
                return True
    return False


# --- the figures

REPETITION: Final = {"loop", "repeat_varied", "cycle", "fan_out", "error_streak", "monologue", "chanting"}
"""The rules whose subject both detectors have as well."""


@dataclass
class Figures:
    """The findings of a detector: by rule, the sessions at fault and those found; and the healthy ones."""

    at_fault: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    found: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    healthy: int = 0
    alarms: list[str] = field(default_factory=list)

    def add(self, name: str, label: dict[str, Any], at: int | None) -> None:
        """Count a session, in which something was found at that event (None: nothing)."""
        if not label["expect"]:
            self.healthy += 1
            self.alarms += [name] if at is not None else []
        for rule in label["expect"]:
            self.at_fault[rule] += 1
            self.found[rule] += at is not None and at >= label["from_sequence"]

    def lines(self) -> list[str]:
        """The figures as lines of text."""
        by_rule = ", ".join(f"{rule} {self.found[rule]}/{count}" for rule, count in sorted(self.at_fault.items()))
        share = len(self.alarms) / max(1, self.healthy)
        return [
            f"  recall {self._recall(set(self.at_fault))}",
            f"  recall of repetitions alone {self._recall(REPETITION)}",
            f"  by rule {by_rule}",
            f"  false alarms per healthy session {len(self.alarms)}/{self.healthy} = {share:.3f}",
            *[f"    {name}" for name in self.alarms],
        ]

    def _recall(self, rules: set[str]) -> str:
        found, all_ = (sum(counts[rule] for rule in rules) for counts in (self.found, self.at_fault))
        return f"{found}/{all_} = {found / max(1, all_):.2f}"


DETECTORS: Final[dict[str, Callable[[Sequence[Event]], int | None]]] = {"OpenHands": openhands, "Gemini CLI": gemini}


def figures_of(detector: str) -> Figures:
    """The figures of a detector over all recordings."""
    figures = Figures()
    for name, label in labels().items():
        figures.add(name, label, DETECTORS[detector](events(name)))
    return figures


def main() -> int:
    """Print the figures of both detectors."""
    for detector in DETECTORS:
        print(detector, *figures_of(detector).lines(), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
