r"""A cheap necessary condition for a secret in a text: most texts do not meet it, and are not searched any further.

A secret may be wrapped at any column, so no fixed bytes of it need be in the text. But a view of a text (see
`redaction_views`) is the text without some of its bytes. So what is left of the view if still more is dropped, its
trace, is the same as that of the text, and contains the trace of each form that the view contains. In one pass each, a
text is reduced to two short traces:

- rarer letters and digits, for the forms that are read as they are, unescaped, or compact. The letters of `\a`, `\b`,
  `\e`, `\f`, `\n`, `\r`, `\t` and `\v` are not among them, as unescaping drops those;
- decimal digits, c and d, for hexadecimal digits: without those letters.

Before that, each rare letter or digit is searched alone, which is much faster: a text without it has no form with it.

This fails only where unescaping does more than drop bytes and those letters: where it makes letters or digits, removes
others, or puts separate ones side by side. A text in which it may do so is always searched (`decodes`):

- a terminal escape, or `\e`, which becomes one: it and what it encloses are removed;
- `\` before `u`, `U`, `x`, an octal digit or a line end; `%` or `%u` with hexadecimal digits; an entity, also if a `\`
  is ahead of its `#` or `;`, as that is removed first;
- three `\`, as the second pass may find `\` and a line end where the first has found `\\` and `\n`.

What is left are `\` and a sign, which stays, `\` and one of those letters, and a quote within quotes. The result is
such a text again, with the same traces, and its runs of letters and digits are in the original: so the three zeros that
the offsets of a dump have are in the text, and in its trace. A text that has them and an offset is always searched,
too, as blanking offsets puts others side by side, and so is one with a column of letters between signs.
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
_SAMPLED: Final = 2 * _BLOCK - 1
"""A trace of this length or more contains a whole block at a sampled position, wherever it occurs."""
_WIDEST: Final = 3
_SURE: Final = 4
"""A trace of this length is rare in other text; for a shorter one a run of letters is searched, if there is one."""
_FEWEST: Final = 2
_RUN: Final = 4
_HEAD: Final = 4
_RARE: Final = b"ZQXJKYWVUHGBzqjxk978654"
"""Letters and digits that programs and prose have little of, the rarest first."""
_RARE_FIRST: Final = _RARE + b"NPLMRFODAECITS3w2ypgmu1hcdlbfv0oisnrate"
_RUNS: Final = re.compile(rb"[A-Za-z0-9]+")
_DECODED: Final = (
    (ord("\\"), re.compile(rb"\\(?:[euUx0-7\r\n]|\\\\)")),
    (ord("%"), re.compile(rb"%(?:[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4})")),
    (ord("&"), re.compile(rb"&(?:\\?#|[A-Za-z][A-Za-z0-9]{1,30}\\?;)")),
)


def decodes(raw: bytes) -> bool:
    """Whether decoding the escapes of a text may make letters or digits, or put separate ones side by side."""
    if _ESCAPE in raw:
        return True
    for sign, found in _DECODED:  # noqa: SIM110  # `any` takes twice as long
        if sign in raw and found.search(raw):
            return True
    return False


_ESCAPE: Final = 0x1B
_OFFSET: Final = re.compile(rb"0[0-9A-Fa-f]{5}")
"""What a line of a dump begins with."""


class SecretTrace:
    """The letters and digits of a text that are in `retained`, read as `read_as`."""

    def __init__(self, retained: bytes, read_as: bytes) -> None:
        self._table: Final = bytes.maketrans(retained, read_as)
        self._dropped: Final = bytes(one for one in range(256) if one not in retained)

    def __call__(self, raw: bytes) -> bytes:
        """What a text leaves."""
        return raw.translate(self._table, self._dropped)


_PLAIN: Final = bytes(one for one in _RARE_FIRST if one not in b"abefnrtvilos")
letters: Final = SecretTrace(_PLAIN, _PLAIN)
digits: Final = SecretTrace(b"0123456789cdCD", b"0123456789cdcd")


class _Characters:
    """Which rare characters each form has: a text that has none of one of them does not have the form."""

    def __init__(self, parts: Iterable[NeedlePart]) -> None:
        self.parts: Final = {part: frozenset(part.text).intersection(_RARE) for part in parts}
        self._bits: Final = {known: 1 << bit for bit, known in enumerate({*self.parts.values()})}
        self._everything: Final = (1 << len(self._bits)) - 1
        self._without: Final = [
            (rare, sum(bit for known, bit in self._bits.items() if rare not in known)) for rare in _RARE
        ]

    def of(self, part: NeedlePart) -> int:
        """The bit of this form's characters."""
        return self._bits[self.parts[part]]

    def possible(self, raw: bytes) -> int:
        """The bits of all characters that the text has."""
        possible = self._everything
        for rare, without in self._without:
            if rare not in raw:
                possible &= without
                if not possible:
                    break
        return possible


class _Parts:
    """Byte strings to search for one by one: those with the same beginning only if that is in the text.

    Each comes with the bits of the forms that it is a part of.
    """

    def __init__(self, parts: Mapping[bytes, int]) -> None:
        chosen: dict[bytes, int] = {}
        for part in sorted(parts, key=len):
            found = next((one for one in chosen if one in part), part[:_BLOCK])  # the shorter one is found with it
            chosen[found] = chosen.get(found, 0) | parts[part]
        heads: dict[bytes, list[bytes]] = {}
        for part in chosen:
            heads.setdefault(part[:_HEAD], []).append(part)
        self._heads: Final = [
            (reduce(or_, (chosen[part] for part in same)), head, same) for head, same in heads.items() if head
        ]

    def any_in(self, text: bytes, possible: int) -> bool:
        """Whether one of them is in this text."""
        for bits, head, parts in self._heads:
            if bits & possible and head in text and any(part in text for part in parts):
                return True
        return False


class _Known:
    """Traces of secrets. Long ones are searched at sampled positions, as in `NeedleIndex`, and short ones each."""

    def __init__(self, trace: Callable[[bytes], bytes], parts: Iterable[NeedlePart], characters: _Characters) -> None:
        wholes: set[bytes] = set()
        short: dict[bytes, int] = {}
        lengths: list[int] = []
        self._sampled = 0
        self.shortest = sys.maxsize
        for part in parts:
            traced = trace(part.text)
            self.shortest = min(self.shortest, len(traced))
            if len(traced) < _SAMPLED:
                short[traced] = short.get(traced, 0) | characters.of(part)
            else:
                self._sampled |= characters.of(part)
                lengths.append(len(traced))
                wholes.add(part.needle.text)
        self._short: Final = _Parts(short)
        self._step: Final = min(_WIDEST, (min(lengths, default=_SAMPLED) - _BLOCK + 1) // _BLOCK)
        self._blocks: Final = frozenset(chain.from_iterable(_all_blocks(trace(whole)) for whole in wholes))

    def any_in(self, traced: bytes, possible: int) -> bool:
        """Whether one of them is in the trace of a text."""
        if len(traced) < self.shortest:
            return False
        if self._sampled & possible:
            whole = memoryview(traced)[: len(traced) & -_BLOCK]
            if not self._blocks.isdisjoint(whole.cast("Q")[:: self._step].tolist()):
                return True
        return self._short.any_in(traced, possible)


def _all_blocks(traced: bytes) -> Iterator[int]:
    """The blocks at every position."""
    for at in range(_BLOCK):
        yield from memoryview(traced)[at : at + (len(traced) - at & -_BLOCK)].cast("Q")


class SecretTraces:
    """What secrets leave in any text that contains one of their forms. `may_be_in` is wrong only in being true."""

    def __init__(self, known: Mapping[TextReading, Sequence[NeedlePart]]) -> None:
        # A text with a form that decodes is searched anyway.
        plain = [part for part in known[TextReading.TEXT] if not decodes(part.text)] + [*known[TextReading.UNESCAPED]]
        runs = {part: _longest_run(part.text) for part in plain if len(letters(part.text)) < _SURE}
        by_run = {part for part, run in runs.items() if len(run) >= _RUN}
        by_letters = [*(part for part in plain if part not in by_run), *known[TextReading.COMPACT]]
        self._shortest: Final = min((len(part.text) for parts in known.values() for part in parts), default=sys.maxsize)
        self._read: Final = _Characters([*plain, *known[TextReading.COMPACT]])
        self._dumped: Final = _Characters(known[TextReading.HEXADECIMAL])
        self._runs: Final = _Parts(_joined((runs[part], self._read.of(part)) for part in by_run))
        self._letters: Final = _Known(letters, by_letters, self._read)
        self._digits: Final = _Known(digits, known[TextReading.HEXADECIMAL], self._dumped)
        self._always: Final = min(self._letters.shortest, self._digits.shortest) < _FEWEST

    def fit_in(self, text: str) -> bool:
        """Whether a text is long enough. Of the escapes, only an entity can be longer when it is decoded."""
        return len(text) >= self._shortest or not text.isascii() or "&" in text

    def may_be_in(self, raw: bytes) -> bool:
        """Whether a text may contain a form of one of the secrets, or has to be searched as it decodes escapes."""
        if self._always or decodes(raw):
            return True
        read, dumped = self._read.possible(raw), self._dumped.possible(raw)
        if not read and not dumped:
            return False
        seen = letters(raw)
        if read and (self._letters.any_in(seen, read) or self._runs.any_in(raw, read)):
            return True
        if dumped and self._digits.any_in(digits(seen), dumped):
            return True
        return (b"000" in seen and _OFFSET.search(raw) is not None) or has_column(raw)


def _joined(pairs: Iterable[tuple[bytes, int]]) -> dict[bytes, int]:
    """The bits of each text."""
    found: dict[bytes, int] = {}
    for text, bits in pairs:
        found[text] = found.get(text, 0) | bits
    return found


def _longest_run(text: bytes) -> bytes:
    return max(_RUNS.findall(text), key=len, default=b"")
