"""Transformed views of a text in which an encoded secret is contiguous, each with a mapping back to the text.

All of them are linear in the length of the text, and none holds state between two texts.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from html.entities import html5
from itertools import compress
from typing import Final

from sandherd_worker.redaction_search import Span

Back = Callable[[Span], Span]


@dataclass(frozen=True, slots=True)
class TextView:
    """A view of a text. `back` maps a span of the view to the span of the text that it was read from."""

    data: bytes
    back: Back


class Projection:
    """Drops all characters of a text except those in `retained`, which it reads as those in `read_as`."""

    def __init__(self, retained: bytes, read_as: bytes) -> None:
        self._table: Final = bytes.maketrans(retained, read_as)
        self._dropped: Final = bytes(one for one in range(256) if one not in retained)
        self._flags: Final = bytes(one in retained for one in range(256))

    def __call__(self, raw: bytes) -> TextView:
        """The text in this view."""
        positions: list[int] = []

        def back(span: Span) -> Span:
            if not positions:
                positions.extend(compress(range(len(raw)), raw.translate(self._flags)))
            return positions[span[0]], positions[span[1] - 1] + 1

        return TextView(raw.translate(self._table, self._dropped), back)


_LETTERS: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
compact: Final = Projection(_LETTERS, _LETTERS)
"""Only letters and digits: without line ends, indentation, quotes, separators, and signs at the start of each line.

The signs of base64 are dropped as well, because lines may begin with the same signs (`+` in a diff, `//`, `-`).
"""
hexadecimal: Final = Projection(b"0123456789abcdefABCDEF", b"0123456789abcdefabcdef")
"""Only hexadecimal digits, in lower case."""

_ESCAPE_SIGNS: Final = (b"%", b"\\", b"&", b"\x1b", b"'\"'")
_ESCAPE: Final = re.compile(
    rb"%(?P<url>[0-9A-Fa-f]{2})"
    rb"|\\[uU]\{?(?P<high>[dD][89abAB][0-9A-Fa-f]{2})\}?\\[uU]\{?(?P<low>[dD][c-fC-F][0-9A-Fa-f]{2})\}?"
    rb"|\\u(?P<four>[0-9A-Fa-f]{4})|%u(?P<wide>[0-9A-Fa-f]{4})|\\U(?P<eight>[0-9A-Fa-f]{8})|\\u\{(?P<braced>[0-9A-Fa-f]{1,6})\}"
    rb"|\\x(?P<two>[0-9A-Fa-f]{2})|\\(?P<octal>[0-3][0-7]{2}|[0-7]{1,2})|\\(?P<one>[^\w\s]|[abefnrtv]|\r?\n| )"
    rb"|'(?:\\(?P<quote>')|\"(?P<quoted>'+)\")'"
    rb"|&#0{0,8}(?P<decimal>[0-9]{1,7});|&#[xX]0{0,8}(?P<entity>[0-9A-Fa-f]{1,6});|&(?P<named>[A-Za-z][A-Za-z0-9]{1,30};)"
    rb"|\x1b(?P<terminal>\[[0-?]{0,32}[ -/]{0,4}[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]{1,4}[0-~]|[0-OQ-WYZ\\`-~])"
)
_MEANING_OF_SINGLE: Final = {
    b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v",
    b"\n": b"", b"\r\n": b"",
}  # fmt: skip


def unescaped(raw: bytes) -> TextView | None:
    """The text with the escapes of URLs, JSON, HTML, shells and terminals decoded; None if it has none."""
    if not any(sign in raw for sign in _ESCAPE_SIGNS):
        return None
    data, count = _ESCAPE.subn(_decode, raw)
    return TextView(data, _reverse_map(raw)) if count else None


@lru_cache(maxsize=1024)
def _meaning_of(escape: bytes) -> bytes:
    found = _ESCAPE.match(escape)
    assert found is not None
    return _meaning(found)


def _decode(found: re.Match[bytes]) -> bytes:
    if found.lastgroup == "terminal":
        return b""
    return _meaning_of(found[0])


def _escape_positions(raw: bytes) -> "Iterator[_EscapePosition]":
    """The positions of the escapes in a text and in its view."""
    shift = 0
    for found in _ESCAPE.finditer(raw):
        (start, end), length = found.span(), len(_decode(found))
        yield _EscapePosition(start + shift, start + shift + length, start, end)
        shift += length - (end - start)


@dataclass(frozen=True, slots=True)
class _EscapePosition:
    """The position of an escape, as start and end in the view and in the text."""

    start: int
    end: int
    raw_start: int
    raw_end: int


def _reverse_map(raw: bytes) -> Back:
    spots: list[_EscapePosition] = []
    starts: list[int] = []

    def origin(place: int) -> Span:
        """The bytes of the text that one byte of the view was read from."""
        index = bisect_right(starts, place) - 1
        if index < 0:
            return place, place + 1
        spot = spots[index]
        if place < spot.end:
            return spot.raw_start, spot.raw_end
        return spot.raw_end + place - spot.end, spot.raw_end + place - spot.end + 1

    def back(span: Span) -> Span:
        if not spots:
            spots.extend(_escape_positions(raw))
            starts.extend(spot.start for spot in spots)
        return origin(span[0])[0], origin(span[1] - 1)[1]

    return back


def _meaning(found: re.Match[bytes]) -> bytes:
    kind = found.lastgroup or ""
    value = found[kind]
    if kind in {"url", "two", "octal"}:
        return bytes([int(value, 8 if kind == "octal" else 16)])
    if kind == "one":
        return _MEANING_OF_SINGLE.get(value, value)
    if kind in {"quote", "quoted"}:
        return value
    if kind == "named":
        return html5.get(value.decode(), found[0].decode()).encode("utf-8", "surrogatepass")
    return _character(_code_point(found, kind, value))


def _code_point(found: re.Match[bytes], kind: str, value: bytes) -> int:
    if kind == "low":
        return 0x10000 + ((int(found["high"], 16) - 0xD800) << 10) + int(value, 16) - 0xDC00
    return int(value, 10 if kind == "decimal" else 16)


def _character(code: int) -> bytes:
    return chr(code if code <= 0x10FFFF else 0xFFFD).encode("utf-8", "surrogatepass")


_DUMP_OFFSET: Final = re.compile(rb"0(?<![0-9A-Za-z]0)[0-9A-Fa-f]{5,7}(?::[ \t]|[ \t]{1,8}(?=\S))")
_ROW: Final = (
    rb"[0-9A-Fa-f]{6,8}(?P<xxd>:)?[ \t]{1,8}"
    rb"(?P<bytes>(?(xxd)(?:[0-9A-Fa-f]{2,64} ){0,255}[0-9A-Fa-f]{2,64}(?=[\s\"'`]|\Z)"
    rb"|(?:-?[0-9A-Fa-f]{2,11} {1,5}){0,255}-?[0-9A-Fa-f]{2,11}(?=[\s\"'`]|\Z)))?"
)
_DUMP_LINE: Final = re.compile(rb"(?m)^[^\w\n\"'`]{0,16}" + _ROW + rb"(?P<letters>[^\n]*)")
_QUOTED_LINE: Final = re.compile(
    rb"(?m)(?:^[^\w\n]{0,16}|(?<=[\"'`]))" + _ROW + rb"(?P<letters>[^\n]*?)"
    rb"(?=[\"'],[ \t]{0,9}[\"'][0-9A-Fa-f]{6,8}[: ]|\n|\Z)"
)


_COLUMN: Final = re.compile(rb"(?<=[0-9A-Fa-f]) {2,1024}[>|][^\n]*")


def has_column(raw: bytes) -> bool:
    """Whether a text has a column of letters that begins with `>` or `|`, as `od -t x1z` and `hexdump -C` write it."""
    # A single byte is found much faster than several.
    if (b">" in raw and b"  >" in raw) or (b"|" in raw and b"  |" in raw):
        return _COLUMN.search(raw) is not None
    return False


def dump(raw: bytes, *, quoted: bool | None) -> bytes | None:
    """The text with the offsets and the column of letters of `xxd`, `hexdump` and `od` blanked; None if it has none.

    With `quoted`, a row may also begin after a quote, as in JSON. None means so if the text has no escaped line end. A
    column of letters that begins with a sign is blanked after any digits, to the end of its line.
    """
    rows = _with_rows_blanked(raw, quoted=quoted)
    found = raw if rows is None else rows
    return _COLUMN.sub(_blank, found) if has_column(found) else rows


def _with_rows_blanked(raw: bytes, *, quoted: bool | None) -> bytes | None:
    if b"000" not in raw or not _DUMP_OFFSET.search(raw):
        return None
    if quoted is None:
        quoted = b"\\n" not in raw
    return (_QUOTED_LINE if quoted else _DUMP_LINE).sub(_blank_all_but_bytes, raw)


def _blank(found: re.Match[bytes]) -> bytes:
    return b" " * len(found[0])


def _blank_all_but_bytes(found: re.Match[bytes]) -> bytes:
    dumped, letters = found["bytes"], found["letters"]
    before = b" " * (found.end() - found.start() - len(dumped or b"") - len(letters))
    return before + (letters if dumped is None else dumped + b" " * len(letters))


_PARTIAL_ESCAPE: Final = re.compile(
    rb"(?:%u?[0-9A-Fa-f]{0,3}|'(?:\\'?|\"'{0,9}\"?)?|\\(?:[uU][0-9A-Fa-f{}]{0,9}|x[0-9A-Fa-f]?|[0-7]{0,2})|&[#A-Za-z0-9]{0,32}"
    rb"|\x1b(?:\[[0-?]{0,32}[ -/]{0,4}|[ -/]{1,4})?)\Z"
)
_PARTIAL_LINK: Final = re.compile(rb"\x1b\][^\x07\x1b]*\x1b?")
_PARTIAL_OFFSET: Final = re.compile(rb"\n[^\w\n]{0,16}[0-9A-Fa-f]{1,8}:?\Z")
_MAX_PARTIAL_ESCAPE: Final = 40


def without_half_an_escape(raw: bytes) -> bytes:
    """The text without an incomplete escape at its end."""
    link = raw.rfind(b"\x1b]")
    if link >= 0 and _PARTIAL_LINK.fullmatch(raw, link):
        return raw[:link]
    found = _PARTIAL_ESCAPE.search(raw, max(0, len(raw) - _MAX_PARTIAL_ESCAPE))
    return raw if found is None else raw[: found.start()]


def without_half_an_offset(raw: bytes) -> bytes:
    """The text without an offset at its end, which may begin another line of a dump."""
    found = _PARTIAL_OFFSET.search(raw, max(0, len(raw) - _MAX_PARTIAL_ESCAPE))
    return raw if found is None else raw[: found.start()]


def line_end(raw: bytes, place: int) -> int:
    """The position of the end of the line that contains `place`."""
    found = raw.find(b"\n", place)
    return len(raw) if found < 0 else found
