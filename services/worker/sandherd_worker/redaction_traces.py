r"""A cheap necessary condition for a secret in a text: most texts do not meet it, so they are not searched further.

A secret may be wrapped at any column, so no fixed bytes of it need be in the text. But a view of a text (see
`redaction_views`) is the text without some of its bytes. A trace is what is left if all those bytes and some more are
dropped. So a view has the same trace as its text, and that trace contains the trace of each form in the view. A text is
reduced to two short traces, each in one pass:

- rarer letters and digits, for the forms that are read as they are, unescaped, or compact. The letters of `\a`, `\b`,
  `\e`, `\f`, `\n`, `\r`, `\t` and `\v` are not among them, as unescaping drops those;
- decimal digits, c and d, for hexadecimal digits: without those letters.

Before that, each rare letter or digit is searched for by itself, which is much faster: a text without it contains no
form that has it.

This fails only where unescaping does more than drop bytes and those letters: where it makes letters or digits, removes
others, or puts separate ones side by side. A text in which it may do so is always searched (`decodes`):

- a terminal escape, or `\e`, which becomes one: it and what it encloses are removed;
- `\` before `u`, `U`, `x`, an octal digit or a line end; `%` or `%u` with hexadecimal digits; an entity, also if a `\`
  is ahead of its `#` or `;`, as that is removed first;
- three `\`, as the second pass may find `\` and a line end where the first has found `\\` and `\n`.

All other escapes are `\` before a sign, which remains, `\` before one of those letters, and a quote within quotes. The
unescaped text has only such escapes, too, and the same traces, and its runs of letters and digits are in the original.
So the three zeros that the offsets of a dump have are in the text, and in its trace. A text that has them and an offset
is always searched, because other characters become adjacent when offsets are blanked. So is a text with a column of
letters between signs.
"""

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final

from sandherd_worker.redaction_forms import TextReading
from sandherd_worker.redaction_search import NeedlePart
from sandherd_worker.redaction_views import has_column

_BLOCK: Final = 8
_SAMPLED_LENGTH: Final = 2 * _BLOCK - 1
"""A trace of this length or more contains a whole block at a sampled position, wherever it occurs."""
_MAX_STRIDE: Final = 3
"""Maximum distance of two sampled positions, in blocks."""
_MIN_RARE_TRACE: Final = 4
"""A trace of this length is rare in other text. Instead of a shorter one, a run of letters is searched for."""
_MIN_TRACE: Final = 2
"""If a form has to be searched for by a shorter trace, every text is searched."""
_MIN_RUN: Final = 4
"""Minimum length of such a run of letters and digits; a secret without one is searched for by its trace."""
_HEAD_LENGTH: Final = 4
_RARE: Final = b"ZQXJKYWVUHGBzqjxk978654"
"""Letters and digits that programs and prose have little of, the rarest first."""
_RARE_FIRST: Final = _RARE + b"NPLMRFODAECITS3w2ypgmu1hcdlbfv0oisnrate"
_RUNS: Final = re.compile(rb"[A-Za-z0-9]+")
_DECODED_ESCAPES: Final = (
    (ord("\\"), re.compile(rb"\\(?:[euUx0-7\r\n]|\\\\)")),
    (ord("%"), re.compile(rb"%(?:[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})")),
    (ord("&"), re.compile(rb"&(?:\\?#|[A-Za-z][A-Za-z0-9]{1,30}\\?;)")),
)


def decodes(raw: bytes) -> bool:
    """Whether decoding the escapes of a text may make letters or digits, or put separate ones side by side."""
    if _ESCAPE_BYTE in raw:
        return True
    for sign, pattern in _DECODED_ESCAPES:  # noqa: SIM110  # `any` takes twice as long
        if sign in raw and pattern.search(raw):
            return True
    return False


_ESCAPE_BYTE: Final = 0x1B
_DUMP_OFFSET: Final = re.compile(rb"0[0-9A-Fa-f]{5}")
"""Matches the offset at the beginning of a line of a dump."""


class SecretTrace:
    """The letters and digits of a text that are in `retained`, read as `read_as`."""

    def __init__(self, retained: bytes, read_as: bytes) -> None:
        self._table: Final = bytes.maketrans(retained, read_as)
        self._dropped: Final = bytes(one for one in range(256) if one not in retained)

    def __call__(self, raw: bytes) -> bytes:
        """The trace of a text."""
        return raw.translate(self._table, self._dropped)


_TRACED_LETTERS: Final = bytes(one for one in _RARE_FIRST if one not in b"abefnrtvilos")
letters: Final = SecretTrace(_TRACED_LETTERS, _TRACED_LETTERS)
digits: Final = SecretTrace(b"0123456789cdCD", b"0123456789cdcd")


class _RareCharacters:
    """The rare characters of each form: a text without one of them does not contain the form.

    Each set of characters that some form has is a bit.
    """

    def __init__(self, parts: Iterable[NeedlePart]) -> None:
        self.parts: Final = {part: frozenset(part.text).intersection(_RARE) for part in parts}
        self._bits: Final = {known: 1 << bit for bit, known in enumerate({*self.parts.values()})}
        self._all_bits: Final = (1 << len(self._bits)) - 1
        self._without: Final = [
            (rare, sum(bit for known, bit in self._bits.items() if rare not in known)) for rare in _RARE
        ]

    def of(self, part: NeedlePart) -> int:
        """The bit of this form's set of characters."""
        return self._bits[self.parts[part]]

    def possible(self, raw: bytes) -> int:
        """The bits of all sets whose characters the text has."""
        possible = self._all_bits
        for rare, without in self._without:
            if rare not in raw:
                possible &= without
                if not possible:
                    break
        return possible


class _ByteStrings:
    """Byte strings that are searched for one by one; those with the same beginning only if the text has that beginning.

    `parts` maps each string to the bits of the forms (see `_RareCharacters`) that it is a part of.
    """

    def __init__(self, parts: Mapping[bytes, int]) -> None:
        chosen: dict[bytes, int] = {}
        for part in sorted(parts, key=len):
            found = next(
                (one for one in chosen if one in part), part[:_BLOCK]
            )  # a text with `part` also has this shorter string
            chosen[found] = chosen.get(found, 0) | parts[part]
        heads: dict[bytes, list[bytes]] = {}
        for part in chosen:
            heads.setdefault(part[:_HEAD_LENGTH], []).append(part)
        self._heads: Final = [
            (reduce(or_, (chosen[part] for part in same)), head, same) for head, same in heads.items() if head
        ]

    def any_in(self, text: bytes, possible: int) -> bool:
        """Whether one of the strings is in this text. Those of forms without a bit in `possible` are skipped."""
        for bits, head, parts in self._heads:
            if bits & possible and head in text and any(part in text for part in parts):
                return True
        return False


class _TraceIndex:
    """Traces of secrets. Long ones are searched for at sampled positions, as in `NeedleIndex`, others one by one."""

    def __init__(
        self, trace: Callable[[bytes], bytes], parts: Iterable[NeedlePart], characters: _RareCharacters
    ) -> None:
        wholes: set[bytes] = set()
        short: dict[bytes, int] = {}
        lengths: list[int] = []
        self._sampled = 0
        self.shortest = sys.maxsize
        for part in parts:
            traced = trace(part.text)
            self.shortest = min(self.shortest, len(traced))
            if len(traced) < _SAMPLED_LENGTH:
                short[traced] = short.get(traced, 0) | characters.of(part)
            else:
                self._sampled |= characters.of(part)
                lengths.append(len(traced))
                wholes.add(part.needle.text)
        self._short: Final = _ByteStrings(short)
        self._stride: Final = min(_MAX_STRIDE, (min(lengths, default=_SAMPLED_LENGTH) - _BLOCK + 1) // _BLOCK)
        self._blocks: Final = frozenset(chain.from_iterable(_all_blocks(trace(whole)) for whole in wholes))

    def any_in(self, traced: bytes, possible: int) -> bool:
        """Whether one of the traces may be in the trace of a text."""
        if len(traced) < self.shortest:
            return False
        if self._sampled & possible:
            whole = memoryview(traced)[: len(traced) & -_BLOCK]
            if not self._blocks.isdisjoint(whole.cast("Q")[:: self._stride].tolist()):
                return True
        return self._short.any_in(traced, possible)


def _all_blocks(traced: bytes) -> Iterator[int]:
    """The blocks of a trace, at every position."""
    for at in range(_BLOCK):
        yield from memoryview(traced)[at : at + (len(traced) - at & -_BLOCK)].cast("Q")


class SecretTraces:
    """The traces of all forms of the secrets. `may_be_in` may be wrongly True, but never wrongly False."""

    def __init__(self, known: Mapping[TextReading, Sequence[NeedlePart]]) -> None:
        # A text with a form that decodes is searched anyway.
        plain = [part for part in known[TextReading.TEXT] if not decodes(part.text)] + [*known[TextReading.UNESCAPED]]
        runs = {part: _longest_run(part.text) for part in plain if len(letters(part.text)) < _MIN_RARE_TRACE}
        by_run = {part for part, run in runs.items() if len(run) >= _MIN_RUN}
        by_letters = [*(part for part in plain if part not in by_run), *known[TextReading.COMPACT]]
        self._shortest: Final = min((len(part.text) for parts in known.values() for part in parts), default=sys.maxsize)
        self._read_characters: Final = _RareCharacters([*plain, *known[TextReading.COMPACT]])
        self._dumped_characters: Final = _RareCharacters(known[TextReading.HEXADECIMAL])
        self._runs: Final = _ByteStrings(_bits_by_text((runs[part], self._read_characters.of(part)) for part in by_run))
        self._letters: Final = _TraceIndex(letters, by_letters, self._read_characters)
        self._digits: Final = _TraceIndex(digits, known[TextReading.HEXADECIMAL], self._dumped_characters)
        self._always_search: Final = min(self._letters.shortest, self._digits.shortest) < _MIN_TRACE

    def fit_in(self, text: str) -> bool:
        """Whether a text is long enough for a secret. Only an entity may be shorter than what it is decoded to."""
        return len(text) >= self._shortest or not text.isascii() or "&" in text

    def may_be_in(self, raw: bytes) -> bool:
        """Whether a text may contain a form of one of the secrets, or has to be searched as it decodes escapes."""
        if self._always_search or decodes(raw):
            return True
        read, dumped = self._read_characters.possible(raw), self._dumped_characters.possible(raw)
        if not read and not dumped:
            return False
        seen = letters(raw)
        if read and (self._letters.any_in(seen, read) or self._runs.any_in(raw, read)):
            return True
        if dumped and self._digits.any_in(digits(seen), dumped):
            return True
        return (b"000" in seen and _DUMP_OFFSET.search(raw) is not None) or has_column(raw)


def _bits_by_text(pairs: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    """Combines the bits of equal texts."""
    found: dict[bytes, int] = {}
    for text, bits in pairs:
        found[text] = found.get(text, 0) | bits
    return found


def _longest_run(text: bytes) -> bytes:
    return max(_RUNS.findall(text), key=len, default=b"")
