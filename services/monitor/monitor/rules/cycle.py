"""The agent repeats a series of calls."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from types import MappingProxyType
from typing import Annotated, Final
from uuid import UUID

from pydantic import Field

from monitor.facts import EndedCall, Facts, Observation
from monitor.normalisation import text_digest
from monitor.repeated_calls import is_wait
from monitor.rules.rule import Documentation, GuardianRule, Pattern, Thresholds, Unit

_LENGTHS: Final = (2, 3, 4, 5)
"""The possible numbers of calls in a series."""
_MAX_AGENTS: Final = 3
"""Maximum number of agents and sub-agents whose calls are remembered."""
_POLL_DISCOUNT: Final = 7
"""The difference between the default thresholds `polls` and `blocks`."""


class CycleThresholds(Thresholds):
    """The numbers of equal series that are a cycle."""

    blocks: Annotated[int, Unit("series"), Field(ge=2)] = 3
    """Number of equal series of calls in a row. A message after which the pattern occurs this often counts as
    `ignored`."""
    interrupt_at: Annotated[int, Unit("series"), Field(ge=2)] = 5
    """At this number the agent is interrupted."""
    pause_at: Annotated[int, Unit("series"), Field(ge=2)] = 8
    """At this number the sandbox is paused and an approval is requested."""
    polls: Annotated[int, Unit("series"), Field(ge=2)] = 10
    """Number of equal series with a poll that has the same effect as `blocks` series. Each further one has the effect
    of one series."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A call and its result."""

    digest: str
    number: int
    at: datetime
    polls: bool


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive calls that each equal the call one series length before: their number, and where they began."""

    length: int = 0
    began: int = 0
    began_at: datetime | None = None


_NO_RUNS: Final = (Run(),) * len(_LENGTHS)


@dataclass(frozen=True, slots=True)
class Track:
    """The last calls of one agent or sub-agent, since a file got a new content."""

    parent: str | None = None
    edits: int = 0
    pairs: tuple[Pair, ...] = ()
    runs: tuple[Run, ...] = _NO_RUNS
    """The run for each length of a series."""
    evidence: tuple[UUID, ...] = ()
    """Ids of the events that ended the last calls that equal an earlier one, newest last."""


@dataclass(frozen=True, slots=True)
class Tracks:
    """The tracks of the last agents that called a tool, the newest last."""

    tracks: tuple[Track, ...] = ()


@dataclass(frozen=True, slots=True)
class Series:
    """A series that was repeated."""

    track: Track
    length: int
    run: Run

    @property
    def count(self) -> int:
        """The number of complete series, including the first one."""
        return self.run.length // self.length + 1

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The calls of the last repetition."""
        return self.track.pairs[-self.length :]

    @property
    def polls(self) -> bool:
        """Whether one of its calls is a poll."""
        return any(pair.polls for pair in self.pairs)

    @property
    def key(self) -> str:
        """A key that is the same whichever of its calls the series begins with."""
        digests = [pair.digest for pair in self.pairs]
        return text_digest(min(" ".join(digests[start:] + digests[:start]) for start in range(self.length)))


@dataclass(frozen=True)
class Cycle(GuardianRule[Tracks, CycleThresholds]):
    """The agent repeats the same two to five calls with the same results."""

    name = "cycle"
    order = 110
    thresholds = CycleThresholds
    part = Tracks
    folds_calls = True
    steps = MappingProxyType({"nudge": "blocks", "interrupt": "interrupt_at", "pause": "pause_at"})
    documentation = Documentation(
        condition=f"one agent or sub-agent repeats a series of {_LENGTHS[0]} to {_LENGTHS[-1]} calls with the same "
        "inputs and results `blocks` times in a row. Inputs and results are compared as by `loop`",
        avoids="the count begins again after a new content (edit and test), but not when a file returns to a recent "
        "content. Calls of one response are not a repetition of each other. A series with a poll has to be repeated "
        "`polls` times",
        source="Gemini CLI finds cycles of up to five calls, but ignores results. OpenHands finds cycles of two calls "
        "only",
    )

    def fold(self, part: Tracks, observation: Observation, facts: Facts) -> Tracks:
        """Add the call to the track of its agent."""
        call = observation.call
        if call is None or not call.is_executed:
            return part
        track = next((candidate for candidate in part.tracks if candidate.parent == call.parent), None)
        others = tuple(candidate for candidate in part.tracks if candidate is not track)
        if track is None or track.edits != facts.new_contents:
            track = Track(call.parent, facts.new_contents)
        return Tracks((*others, _with_call(track, call))[-_MAX_AGENTS:])

    def pattern(self, part: Tracks) -> Pattern | None:
        """The series that was repeated most often."""
        series = _top_series(part)
        return None if series is None else self._pattern(series)

    def _pattern(self, series: Series) -> Pattern:
        assert series.run.began_at is not None
        summary = f"a series of {series.length} calls with the same results, {series.count} times in a row"
        return Pattern(
            self.name, series.key, series.run.began_at, series.run.began, series.count, summary, series.track.evidence
        )

    def evaluate(self, part: Tracks, _facts: Facts, _now: datetime, thresholds: CycleThresholds) -> Pattern | None:
        """The series that was repeated most often, if that is a cycle. Series with polls count less."""
        discount = max(0, thresholds.polls - thresholds.blocks)
        counts = [(series.count - discount if series.polls else series.count, series) for series in _series(part)]
        count, top = max(counts, key=lambda pair: pair[0], default=(0, None))
        return replace(self._pattern(top), count=count) if top and count >= thresholds.blocks else None

    def steering_text(self, part: Tracks) -> str:
        """The message: what the agent repeats, and what to do instead."""
        series = _top_series(part)
        calls, times = (2, "several times") if series is None else (series.length, f"{series.count} times in a row")
        return (
            f"You have repeated the same series of {calls} calls {times}, with the same results each time, and changed "
            "nothing between. Going through it again will not change them. Say what the results tell you, and choose a "
            "step that you have not tried. If nothing is left, end the task and say what stands in the way."
        )

    def is_repeated(self, key: str, part: Tracks, observation: Observation) -> bool | None:
        """The last call of the same series shows the pattern; the first call that differs ends it."""
        call = observation.call
        if call is None or not call.is_executed:
            return None
        series = next((candidate for candidate in _series(part) if candidate.key == key), None)
        if series is None:
            return False
        is_last = series.track.pairs[-1].number == call.number and series.run.length % series.length == 0
        return True if is_last else None

    def ignored_after(self, thresholds: CycleThresholds) -> int:
        """The number of series that is a cycle."""
        return thresholds.blocks


def _top_series(part: Tracks) -> Series | None:
    """The series that was repeated most often. Series with polls count less, by the default thresholds."""
    return max(_series(part), key=lambda series: series.count - (_POLL_DISCOUNT if series.polls else 0), default=None)


def _with_call(track: Track, call: EndedCall) -> Track:
    pairs = track.pairs
    pair = Pair(call.pair, call.number, call.at, call.polls or is_wait(call, pairs[-1].at if pairs else None))
    new_pairs = (*pairs, pair)[-_LENGTHS[-1] :]
    if not any(earlier.digest == pair.digest for earlier in pairs):
        return Track(track.parent, track.edits, new_pairs)
    runs = tuple(
        _continue_cycle(run, pairs[-length], pair, call.began) if len(pairs) >= length else run
        for length, run in zip(_LENGTHS, track.runs, strict=True)
    )
    if not any(run.length for run in runs):
        return Track(track.parent, track.edits, new_pairs)
    return Track(track.parent, track.edits, new_pairs, runs, (*track.evidence, *call.ids)[-_LENGTHS[-1] :])


def _continue_cycle(run: Run, before: Pair, pair: Pair, began: int) -> Run:
    if before.digest != pair.digest or began < before.number:
        return _NO_RUNS[0]
    return Run(run.length + 1, run.began or before.number, run.began_at or before.at)


def _series(part: Tracks) -> Iterator[Series]:
    """The series that occur at least twice: at most one of each agent, the shortest."""
    for track in part.tracks:
        if not track.evidence:
            continue
        repeated = (
            Series(track, length, run) for length, run in zip(_LENGTHS, track.runs, strict=True) if run.length >= length
        )
        # Several equal calls in a row are a loop, not a series.
        series = next((series for series in repeated if len({pair.digest for pair in series.pairs}) > 1), None)
        if series is not None:
            yield series


RULE: Final = Cycle()
