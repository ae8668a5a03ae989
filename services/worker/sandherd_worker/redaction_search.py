"""Exact search for many byte strings at once, in linear time.

A text is sampled: the blocks of eight bytes at every 8th, 16th or 24th position are looked up in a set of all blocks at
the first 8, 16 or 24 positions of the strings. Ordinary text has none of them, so it is only read once, by C code.
Where a block is found, the strings that contain it are compared with the text.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

Span = tuple[int, int]

_BLOCK: Final = 8
_SAMPLED_LENGTH: Final = 2 * _BLOCK - 1
"""A string of this length or more contains a whole block at a sampled position, wherever it occurs."""
_MAX_STRIDE: Final = 3
"""Maximum distance of two sampled positions, in blocks."""
_MAX_SEPARATE_SEARCHES: Final = 4
"""Up to this number of different known blocks in a text, each is located by a search in C code."""
_HEAD_LENGTH: Final = 4
"""Length of the beginnings by which the strings are grouped, in bytes."""
PIECE: Final = 32
"""Length of the pieces in which a long encoded secret is searched for, so that a part of it is found, too."""


@dataclass(frozen=True, slots=True)
class Needle:
    """A byte string to find. `before` and `after` are the numbers of adjacent bytes that also depend on the secret."""

    text: bytes
    before: int = 0
    after: int = 0


@dataclass(frozen=True, slots=True)
class NeedlePart:
    """A needle or a piece of one, which is searched for. `at` is its position in the needle."""

    text: bytes
    needle: Needle
    at: int


class NeedleIndex:
    """Finds needles. With `pieces`, a long needle is also found by any `2 * PIECE - 1` bytes of it."""

    def __init__(self, needles: Iterable[Needle], *, pieces: bool = False) -> None:
        parts = [part for needle in dict.fromkeys(needles) for part in _parts(needle, pieces=pieces)]
        self.parts: Final = parts
        self._short: Final = [part for part in parts if len(part.text) < _SAMPLED_LENGTH]
        long = [part for part in parts if len(part.text) >= _SAMPLED_LENGTH]
        shortest = min((len(part.text) for part in long), default=_SAMPLED_LENGTH)
        self._stride: Final = min(_MAX_STRIDE, (shortest - _BLOCK + 1) // _BLOCK)
        self._blocks: Final[dict[int, list[tuple[NeedlePart, int]]]] = {}
        for part in long:
            for at in range(self._stride * _BLOCK):
                block = int.from_bytes(part.text[at : at + _BLOCK], sys.byteorder)
                self._blocks.setdefault(block, []).append((part, at))
        self._known_blocks: Final = frozenset(self._blocks)
        self._texts_by_head: Final[dict[bytes, list[bytes]]] = {}
        for part in parts:
            self._texts_by_head.setdefault(part.text[:_HEAD_LENGTH], []).append(part.text)
        self._shortest: Final = min((len(part.text) for part in parts), default=sys.maxsize)
        self._longest: Final = max((len(part.text) for part in parts), default=0)
        self._short_beginnings: Final = frozenset(
            part.text[:length] for part in parts for length in range(1, _HEAD_LENGTH)
        )
        self._pieces: Final = pieces

    def find(self, view: bytes) -> list[Span]:
        """The spans of the needles, in order, with overlapping ones joined; with `pieces`, adjacent ones as well."""
        if len(view) < self._shortest:
            return []
        found = [span for part in self._short for span in _occurrences(part, view)]
        found += self._find_sampled(view)
        return merge(found, touching=self._pieces) if found else found

    def partial_start(self, view: bytes, min_length: int) -> int | None:
        """The start of the longest suffix that is the beginning of a needle; None if under `min_length` bytes."""
        tail = view[-self._longest + 1 :] if self._longest > 1 else b""
        starts = self._long_partial_starts(tail)
        if starts:
            start = min(starts)
            return len(view) - len(tail) + start if len(tail) - start >= min_length else None
        lengths = range(min(_HEAD_LENGTH - 1, len(view)), min_length - 1, -1)
        return next((len(view) - n for n in lengths if n and view[-n:] in self._short_beginnings), None)

    def _long_partial_starts(self, tail: bytes) -> list[int]:
        if len(self._texts_by_head) < len(tail):
            return [
                start for head, texts in self._texts_by_head.items() for start in _first_beginning(tail, head, texts)
            ]
        heads = (
            (at, self._texts_by_head.get(tail[at : at + _HEAD_LENGTH])) for at in range(len(tail) - _HEAD_LENGTH + 1)
        )
        return [at for at, texts in heads if texts and _is_beginning(tail[at:], texts)]

    def _find_sampled(self, view: bytes) -> list[Span]:
        blocks = memoryview(view)[: len(view) & -_BLOCK].cast("Q")[:: self._stride].tolist()
        seen = self._known_blocks.intersection(blocks)
        if not seen:
            return []
        found: dict[tuple[int, int], Span] = {}
        for place, block in _block_positions(blocks, seen):
            for part, at in self._blocks[block]:
                start = place * self._stride * _BLOCK - at
                if start >= 0 and (start, len(part.text)) not in found and view.startswith(part.text, start):
                    found[start, len(part.text)] = _widened(part, view, start, start + len(part.text))
        return list(found.values())


def _block_positions(blocks: list[int], seen: frozenset[int]) -> Iterable[tuple[int, int]]:
    """The indexes in `blocks` at which a block of `seen` is, each with that block."""
    if len(seen) > _MAX_SEPARATE_SEARCHES:
        yield from ((place, block) for place, block in enumerate(blocks) if block in seen)
        return
    for block in seen:
        place = -1
        for _ in range(blocks.count(block)):
            place = blocks.index(block, place + 1)
            yield place, block


def _parts(needle: Needle, *, pieces: bool) -> Iterable[NeedlePart]:
    text = needle.text
    if not pieces or len(text) < 2 * PIECE:
        yield NeedlePart(text, needle, 0)
        return
    for at in (*range(0, len(text) - PIECE, PIECE), len(text) - PIECE):
        yield NeedlePart(text[at : at + PIECE], needle, at)


def _first_beginning(tail: bytes, head: bytes, texts: Sequence[bytes]) -> Iterable[int]:
    """The first position at which the rest of `tail` is the beginning of one of `texts`, which begin with `head`."""
    at = tail.find(head)
    while at >= 0:
        if _is_beginning(tail[at:], texts):
            yield at
            return
        at = tail.find(head, at + 1)


def _is_beginning(rest: bytes, texts: Sequence[bytes]) -> bool:
    return any(len(text) > len(rest) and text.startswith(rest) for text in texts)


def _occurrences(part: NeedlePart, view: bytes) -> Iterable[Span]:
    at = view.find(part.text)
    while at >= 0:
        end = at + len(part.text)
        yield _widened(part, view, at, end)
        at = view.find(part.text, end)


def _widened(part: NeedlePart, view: bytes, start: int, end: int) -> Span:
    """The span extended by adjacent bytes of the same needle, up to the next piece."""
    needle = part.needle
    if len(part.text) < len(needle.text):
        first, last = part.at, part.at + len(part.text)
        while first > 0 and start > 0 and part.at - first < PIECE and needle.text[first - 1] == view[start - 1]:
            first, start = first - 1, start - 1
        limit = part.at + 2 * PIECE
        while last < min(len(needle.text), limit) and end < len(view) and needle.text[last] == view[end]:
            last, end = last + 1, end + 1
        whole = (first == 0, last == len(needle.text))
    else:
        whole = (True, True)
    return max(0, start - needle.before * whole[0]), min(len(view), end + needle.after * whole[1])


def merge(spans: Iterable[Span], *, touching: bool = False) -> list[Span]:
    """The spans in order, overlapping ones joined; with `touching` also adjacent ones."""
    merged: list[Span] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1] + touching:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
