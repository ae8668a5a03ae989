"""Repeated calls among others: for each of the last different calls, how often it was repeated. Pure.

A call is repeated if no more than `MAX_GAP` others are between, and no file got a new content meanwhile. Calls of one
batch count once, as their results can't have been read before the last of them was requested.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from monitor.facts import EndedCall

MAX_ROWS: Final = 10
"""Maximum different calls remembered."""
MAX_GAP: Final = 10
"""Maximum other calls between two equal ones."""
MAX_IDS: Final = 8
"""Maximum events remembered of each call."""
PAUSE: Final = 30.0
"""What a call comes after, or takes, that waits for something, in seconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """A call, and how often it was repeated."""

    call: str
    result: str
    tool: str
    began: int
    """The stream sequence of the first one, and the time of its end."""
    began_at: datetime
    last: int
    """The stream sequence of the last one's end."""
    place: int
    """The place of the last one among all calls."""
    edits: int
    """The number of edits before the first one."""
    lines: int
    """The most lines that a result had."""
    polls: bool = False
    count: int = 1
    gap: int = 1
    """The largest distance between two of them: 1 if no other call is between."""
    paused: int = 0
    """How many of them took long, or came after a pause."""
    evidence: tuple[UUID, ...] = ()
    """Event ids of the last results, newest last."""

    @property
    def key(self) -> str:
        """The same for equal calls with equal results."""
        return f"{self.call} {self.result}"

    @property
    def is_poll(self) -> bool:
        """Whether the agent waits for something: a known poller, or pauses before at least half of the repetitions."""
        return self.polls or (self.paused > 0 and 2 * self.paused >= self.count - 1)


@dataclass(frozen=True, slots=True)
class Rows:
    """The last different calls of an episode, the newest last."""

    rows: tuple[Row, ...] = ()
    place: int = 0
    """The number of calls."""
    ended_at: datetime | None = None
    """When the last call ended."""
    most: int = 0
    """The largest count of a row."""

    def row(self, call: str) -> Row | None:
        """The row of a call."""
        return next((row for row in self.rows if row.call == call), None)

    def top(self) -> Row | None:
        """The row that was repeated most often; of several, the newest."""
        return max(reversed(self.rows), key=lambda row: row.count, default=None)

    def with_row(self, row: Row | None, call: EndedCall) -> "Rows":
        """After a call that has this row now, or none."""
        place = self.place + 1
        known = (one for one in self.rows if one.call != call.digest and place - one.place <= MAX_GAP)
        rows = (*known, *(() if row is None else (row,)))[-MAX_ROWS:]
        return Rows(rows, place, call.at, max((one.count for one in rows), default=0))


def first(part: Rows, call: EndedCall, edits: int) -> Row:
    """The row of a call that repeats none."""
    return Row(
        *(call.digest, call.result, call.tool, call.number, call.at, call.number, part.place + 1, edits, call.lines),
        polls=call.polls,
        evidence=_ids(call),
    )


def repeated(part: Rows, row: Row, call: EndedCall) -> Row:
    """The row after another call that repeats it."""
    return Row(
        *(row.call, call.result, row.tool, row.began, row.began_at, call.number, part.place + 1, row.edits),
        lines=max(row.lines, call.lines),
        polls=row.polls,
        count=row.count + 1,
        gap=max(row.gap, part.place + 1 - row.place),
        paused=row.paused + waits(part, call),
        evidence=(*row.evidence, *_ids(call))[-MAX_IDS:],
    )


def is_parallel(row: Row, call: EndedCall) -> bool:
    """Whether a call began before the last equal one ended."""
    return call.began < row.last


def waits(part: Rows, call: EndedCall) -> bool:
    """Whether a call came after a pause, or took long and has not failed."""
    if call.begun_at is None:
        return False
    if call.error is None and (call.at - call.begun_at).total_seconds() >= PAUSE:
        return True
    return part.ended_at is not None and (call.begun_at - part.ended_at).total_seconds() >= PAUSE


def is_again(part: Rows, key: str, call: EndedCall | None) -> bool | None:
    """Whether a call shows the pattern with this key again; False once it is gone, None while neither is known.

    It is gone if more calls have passed than between any two of it.
    """
    if call is None or not call.is_executed:
        return None
    digest, _, result = key.partition(" ")
    row = part.row(digest)
    if row is None or row.count == 1 or (result and row.result != result):
        return False
    if row.last == call.number:
        return True
    return False if part.place - row.place >= row.gap else None


def _ids(call: EndedCall) -> tuple[UUID, ...]:
    return (call.id,) if call.id is not None else ()
