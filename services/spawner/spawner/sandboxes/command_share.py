"""Which projects hold more than their share of COMMANDS. Pure.

The broker counts the bytes of a stream and the messages of each subject, but not the bytes of a subject. So a project
holds what its subjects hold by the mean size of some of their messages, or, if that is more, what the others can't:
a project could hide a few large messages between many small ones. A command's subject ends with its project.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

SAMPLES: Final = 8
"""Messages of a subject whose sizes are read."""


@dataclass(frozen=True, slots=True)
class StoredCommands:
    """What is stored: all bytes, the number of messages by subject, and the largest size that one may have."""

    held: int
    counts: Mapping[str, int]
    largest: int

    def totals(self) -> dict[str, int]:
        """The number of messages by project."""
        found: defaultdict[str, int] = defaultdict(int)
        for subject, count in self.counts.items():
            found[_project(subject)] += count
        return found


def candidates(stored: StoredCommands, limit: int) -> list[str]:
    """The subjects of projects that may be above `limit` bytes: that would be if all messages were large."""
    totals = stored.totals()
    return [subject for subject in stored.counts if totals[_project(subject)] * stored.largest > limit]


def sampled(first: int, last: int, offset: float) -> list[int]:
    """Sequences from which on the messages are read whose sizes stand for all. `offset` is from 0 to 1, random."""
    return sorted({first + int((last - first) * (number + offset) / SAMPLES) for number in range(SAMPLES)})


def above_share(stored: StoredCommands, sizes: Mapping[str, Sequence[int]], limit: int) -> dict[str, int]:
    """The projects that hold more than `limit` bytes, with these, by some sizes of each candidate's messages."""
    held: defaultdict[str, float] = defaultdict(float)
    for subject, found in sizes.items():
        held[_project(subject)] += stored.counts[subject] * mean(found) if found else 0.0
    totals = stored.totals()
    everything = sum(totals.values())
    floors = {name: stored.held - (everything - totals[name]) * stored.largest for name in held}
    bytes_of = {name: max(int(held[name]), floors[name]) for name in held}
    return {name: size for name, size in bytes_of.items() if size > limit}


def _project(subject: str) -> str:
    return subject.rpartition(".")[2]
