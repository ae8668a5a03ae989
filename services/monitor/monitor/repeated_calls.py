"""Counts repetitions of each of the last different calls, even with other calls in between. Pure.

A call is a repetition if it is at most `MAX_GAP` calls after an equal one, and no file got new content in between.
Calls of one batch count once, because the agent requested the last of them before it could read a result.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from monitor.facts import EndedCall

MAX_GAP: Final = 8
"""Maximum distance between two calls that count as a repetition, and the number of different calls that are
remembered."""
MAX_IDS: Final = 4
"""Maximum events remembered of each call."""
PAUSE: Final = 30.0
"""A call that takes at least this number of seconds, or begins that long after the previous call, is a wait."""
_PAUSE_DURATION: Final = timedelta(seconds=PAUSE)


@dataclass(frozen=True, slots=True)
class RepeatedCall:
    """A call, and how often it was repeated."""

    call: str
    result: str
    tool: str
    began: int
    """The stream sequence of the event that ended the first of the equal calls."""
    began_at: datetime
    """When the first of the equal calls ended."""
    last: int
    """The stream sequence of the event that ended the last of the equal calls."""
    place: int
    """The number of calls of the episode up to the last of the equal calls."""
    edits: int
    """`Facts.new_contents` when the first of the equal calls ended: the number of edits until then."""
    lines: int
    """The number of lines of the longest result of the equal calls."""
    polls: bool = False
    count: int = 1
    gap: int = 1
    """The largest distance between two consecutive equal calls; 1 if there was never another call in between."""
    paused: int = 0
    """Number of equal calls that took at least `PAUSE`, or came after such a pause."""
    evidence: tuple[UUID, ...] = ()
    """Ids of the events that ended the last equal calls, newest last. The first call is not included, because most
    calls are never repeated."""

    @property
    def key(self) -> str:
        """A key that is equal for equal calls with equal results and no edit in between."""
        return f"{self.call} {self.edits} {self.result}"

    @property
    def is_poll(self) -> bool:
        """Whether the agent waits for something: a known poller, or pauses before at least half of the repetitions."""
        return self.polls or (self.paused > 0 and 2 * self.paused >= self.count - 1)


@dataclass(frozen=True, slots=True)
class RepeatedCalls:
    """The last different calls of an episode, the newest last."""

    rows: tuple[RepeatedCall, ...] = ()
    place: int = 0
    """The number of calls."""
    ended_at: datetime | None = None
    """When the last call ended."""
    top_count: int = 0
    """The largest count of a row."""

    def row(self, call: str) -> RepeatedCall | None:
        """The row of a call, by its digest; None if it has none."""
        for row in self.rows:
            if row.call == call:
                return row
        return None

    def top(self) -> RepeatedCall | None:
        """The row that was repeated most often; of several, the newest."""
        return max(reversed(self.rows), key=lambda row: row.count, default=None)

    def with_row(self, row: RepeatedCall | None, call: EndedCall) -> "RepeatedCalls":
        """The rows after `call`. `row` is the new row of that call; None if it has none."""
        oldest, digest = self.place + 1 - MAX_GAP, call.digest
        rows = [other for other in self.rows if other.place >= oldest and other.call != digest]
        if row is not None:
            rows.append(row)
        return RepeatedCalls(tuple(rows), self.place + 1, call.at, max([other.count for other in rows], default=0))


def new_row(part: RepeatedCalls, call: EndedCall, edits: int) -> RepeatedCall:
    """The row of a call that is not a repetition."""
    return RepeatedCall(
        *(call.digest, call.result, call.tool, call.number, call.at, call.number, part.place + 1, edits, call.lines),
        call.polls,
    )


def repeated_row(part: RepeatedCalls, row: RepeatedCall, call: EndedCall) -> RepeatedCall:
    """The row after another call that repeats it."""
    return RepeatedCall(
        *(row.call, call.result, row.tool, row.began, row.began_at, call.number, part.place + 1, row.edits),
        lines=max(row.lines, call.lines),
        polls=row.polls,
        count=row.count + 1,
        gap=max(row.gap, part.place + 1 - row.place),
        paused=row.paused + is_wait(call, part.ended_at),
        evidence=(*row.evidence, *call.ids)[-MAX_IDS:],
    )


def is_parallel(row: RepeatedCall, call: EndedCall) -> bool:
    """Whether a call began before the last equal one ended."""
    return call.began < row.last


def is_wait(call: EndedCall, ended_at: datetime | None) -> bool:
    """Whether a call came after a pause, or took long and did not fail. `ended_at` is the end of the previous call."""
    if call.begun_at is None:
        return False
    if call.error is None and call.at - call.begun_at >= _PAUSE_DURATION:
        return True
    return ended_at is not None and call.begun_at - ended_at >= _PAUSE_DURATION


def is_again(part: RepeatedCalls, key: str, call: EndedCall | None) -> bool | None:
    """Whether a call shows the pattern with this key again: False if the pattern has stopped, None if neither is known.

    The pattern has stopped if more calls have passed than between any two repetitions.
    """
    if call is None or not call.is_executed:
        return None
    row = part.row(key.partition(" ")[0])
    # A key of the rule `repeat_varied` has no result: it is the beginning of the row's key.
    if row is None or not row.key.startswith(key):
        return False
    if row.last == call.number:
        return True
    return False if part.place - row.place >= row.gap else None
