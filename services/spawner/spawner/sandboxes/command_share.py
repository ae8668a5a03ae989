"""Finds the projects that use more than their share of COMMANDS. Pure.

The broker counts the bytes of a stream and the messages of each subject, but not the bytes of a subject. So the bytes
of a project are estimated from the mean size of some of its messages. The estimate is never below the bytes that the
messages of all other projects can't have, even at the maximum size: a project could hide a few large messages among
many small ones. A command's subject ends with its project.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Final

SAMPLES: Final = 8
"""The number of messages of a subject whose sizes are read."""


@dataclass(frozen=True, slots=True)
class StoredCommands:
    """The contents of the stream: its bytes, the number of messages by subject, and the maximum size of a message."""

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
    """The subjects of projects that would use more than `limit` bytes if all their messages had the maximum size."""
    totals = stored.totals()
    return [subject for subject in stored.counts if totals[_project(subject)] * stored.largest > limit]


def sampled(first: int, last: int, offset: float) -> list[int]:
    """Stream sequences of a sample: the next message from each on is read. `offset`: a random number from 0 to 1."""
    return sorted({first + int((last - first) * (number + offset) / SAMPLES) for number in range(SAMPLES)})


def above_share(stored: StoredCommands, sizes: Mapping[str, Sequence[int]], limit: int) -> dict[str, int]:
    """The bytes of each project that uses more than `limit`. `sizes`: of a sample of each candidate's messages."""
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
