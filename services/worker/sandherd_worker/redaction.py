"""Redaction: known secrets in all forms of `redaction_forms`, and tokens of common shapes, are replaced by a mark."""

from collections.abc import Iterable
from typing import Any, Final

from sandherd_worker.redaction_forms import SHORTEST_ENCODED, Reading, needles
from sandherd_worker.redaction_search import NeedleIndex, Span, merge
from sandherd_worker.redaction_shapes import shapes
from sandherd_worker.redaction_views import (
    Back,
    compact,
    dump,
    hexadecimal,
    line_end,
    unescaped,
    without_half_an_escape,
    without_half_an_offset,
)

MARK: Final = "[redacted]"

_LAYERS: Final = 2
"""How often escapes are read: JSON within JSON has two."""
_SURE: Final = 4
"""Least bytes of a secret at the end of a text that are held back while it pauses; fewer are shown and remembered."""
_LETTERS: Final = 6
"""The same in characters of base64."""


class Redactor:
    """Replaces secrets by `MARK`. A secret shorter than 4 characters can't be told from ordinary text and stays."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = [secret for secret in dict.fromkeys(secrets) if secret]
        self._literal: Final = NeedleIndex(needles(known, Reading.TEXT))
        self._unescaped: Final = NeedleIndex(needles(known, Reading.UNESCAPED))
        self._compact: Final = NeedleIndex(needles(known, Reading.COMPACT), pieces=True)
        self._hexadecimal: Final = NeedleIndex(needles(known, Reading.HEXADECIMAL), pieces=True)
        self._knows: Final = bool(known)
        self.longest: Final = 4 * max(map(len, known), default=0)

    def text(self, text: str) -> str:
        """The text without its secrets."""
        return render(text, self.spans(text))

    def spans(self, text: str) -> list[Span]:
        """Where the secrets are, in order; each is replaced as a whole."""
        found = [match.span() for match in shapes(text).finditer(text)]
        if self._knows and len(text) >= _SURE:
            found += self._known(text)
        return merge(found) if found else found

    def begun(self, text: str, *, sure: bool) -> int | None:
        """Where the part at the end starts that may be the beginning of a secret; with `sure`, a longer part only."""
        if not self._knows:
            return None
        raw = text.encode("utf-8", "surrogatepass")
        found = [place for place in self._beginnings(raw, _SURE if sure else 1) if place is not None]
        return len(raw[: min(found)].decode("utf-8", "surrogatepass")) if found else None

    def value(self, value: Any) -> Any:
        """A JSON-like value without the secrets in its strings and keys; anything else in it is left as it is."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.value(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value

    def _known(self, text: str) -> list[Span]:
        raw = text.encode("utf-8", "surrogatepass")
        found = self._literal.find(raw)
        if len(raw) >= SHORTEST_ENCODED:
            # What is found already is not read again in the other readings.
            found += self._encoded(_blanked(raw, found))
        return found if len(raw) == len(text) else _in_characters(raw, found)

    def _encoded(self, raw: bytes) -> list[Span]:
        found = self._projected(raw)
        dumped = dump(raw)
        if dumped is not None:
            found += [(start, line_end(raw, end)) for start, end in self._projected(dumped)]
        layer = raw
        ways: list[Back] = []
        for _ in range(_LAYERS):
            view = unescaped(layer)
            if view is None:
                break
            layer, ways = view.data, [view.back, *ways]
            for span in (*self._unescaped.find(layer), *map(compact(layer).back, self._in_compact(layer))):
                for way in ways:
                    span = way(span)  # noqa: PLW2901  # one reading back after the other
                found.append(span)
        return found

    def _in_compact(self, raw: bytes) -> list[Span]:
        return self._compact.find(compact(raw).data)

    def _projected(self, raw: bytes) -> list[Span]:
        found: list[Span] = []
        for project, index in ((compact, self._compact), (hexadecimal, self._hexadecimal)):
            view = project(raw)
            found += [_with_padding(raw, view.back(span)) for span in index.find(view.data)]
        return found

    def _beginnings(self, raw: bytes, least: int) -> Iterable[int | None]:
        yield self._literal.begun(raw, least)
        for text in (raw, dump(without_half_an_offset(raw)) if b"000" in raw else None):
            if text is not None:
                yield self._begun_in(compact(text), self._compact, _LETTERS)
                yield self._begun_in(hexadecimal(text), self._hexadecimal, 2 * _SURE)
        yield from self._beginnings_unescaped(raw)

    def _beginnings_unescaped(self, raw: bytes) -> Iterable[int | None]:
        layer = raw
        ways: list[Back] = []
        for _ in range(_LAYERS):
            layer = without_half_an_escape(layer)
            view = unescaped(layer)
            if view is not None:
                layer, ways = view.data, [view.back, *ways]
            elif layer == raw:
                return
            reading = compact(layer)
            letters = self._compact.begun(reading.data, _LETTERS)
            for begun in (
                self._unescaped.begun(layer, _SURE),
                None if letters is None else reading.back((letters, letters + 1))[0],
            ):
                yield _through(ways, begun)

    @staticmethod
    def _begun_in(view: Any, index: NeedleIndex, least: int) -> int | None:
        begun = index.begun(view.data, least)
        return None if begun is None else int(view.back((begun, begun + 1))[0])


def render(text: str, spans: Iterable[Span], start: int = 0, *, marked: bool = False) -> str:
    """The text from `start` on, each of the spans replaced; of one that begins before, what is beyond.

    With `marked`, one that begins before has its mark already.
    """
    pieces: list[str] = []
    first = start
    for begin, end in spans:
        if end > start:
            pieces += (text[start:begin], "" if marked and begin < first else MARK)
            start = end
    return "".join((*pieces, text[start:])) if pieces else text[start:]


def _through(ways: list[Back], place: int | None) -> int | None:
    """A place in the last of several readings, as one in the text."""
    if place is None:
        return None
    span = (place, place + 1)
    for way in ways:
        span = way(span)
    return span[0]


def _blanked(raw: bytes, spans: list[Span]) -> bytes:
    if not spans:
        return raw
    blank = bytearray(raw)
    for start, end in spans:
        blank[start:end] = bytes(end - start)
    return bytes(blank)


def _with_padding(raw: bytes, span: Span) -> Span:
    """With the signs that fill up the last group of base64 and base32."""
    end = span[1]
    while end < len(raw) and raw[end] == ord("=") and end - span[1] < len("======"):
        end += 1
    return span[0], end


def _in_characters(raw: bytes, spans: list[Span]) -> list[Span]:
    """Spans of bytes as spans of characters."""
    found: list[Span] = []
    at = count = 0
    places = {place: 0 for span in spans for place in span}
    for place in sorted(places):
        count += len(raw[at:place].decode("utf-8", "surrogatepass"))
        at, places[place] = place, count
    found += [(places[start], places[end]) for start, end in spans]
    return found
