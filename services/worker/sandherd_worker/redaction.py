"""Redaction: known secrets in all forms of `redaction_forms`, and tokens of common formats, are replaced by a mark."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from sandherd.contracts.events import ArtifactRef
from sandherd_worker.redaction_documents import may_have_secret, may_have_token
from sandherd_worker.redaction_forms import SHORTEST_ENCODED, TextReading, needles
from sandherd_worker.redaction_numbers import SecretNumbers
from sandherd_worker.redaction_search import NeedleIndex, Span, merge
from sandherd_worker.redaction_shapes import tokens
from sandherd_worker.redaction_traces import SecretTraces
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

_TYPED_FIELDS: Final = ArtifactRef.model_fields.keys()
"""The fields of an artifact reference: the contract has a type for its numbers, so they stay numbers."""
_LINE: Final = re.compile(r"[^\n]+")
_ESCAPE_LEVELS: Final = 2
"""How many times escapes are decoded: JSON within JSON has two levels."""
_MIN_HELD_BACK_BYTES: Final = 4
"""While a stream pauses, its end is held back if it is the beginning of a secret and at least this long, in bytes. A
shorter end is released, and searched again with what follows."""
_MIN_HELD_BACK_CHARACTERS: Final = 4
"""The same minimum in base64 characters, or in characters of a value whose characters are written separately."""


class Redactor:
    """Replaces secrets by `MARK`, except those of fewer than 4 bytes, which any text may contain by chance."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        known = [secret for secret in dict.fromkeys(secrets) if secret]
        self._literal: Final = NeedleIndex(needles(known, TextReading.TEXT))
        self._unescaped: Final = NeedleIndex(needles(known, TextReading.UNESCAPED))
        self._compact: Final = NeedleIndex(needles(known, TextReading.COMPACT), pieces=True)
        self._hexadecimal: Final = NeedleIndex(needles(known, TextReading.HEXADECIMAL), pieces=True)
        self._traces: Final = SecretTraces(
            {
                TextReading.TEXT: self._literal.parts,
                TextReading.UNESCAPED: self._unescaped.parts,
                TextReading.COMPACT: self._compact.parts,
                TextReading.HEXADECIMAL: self._hexadecimal.parts,
            }
        )
        self._numbers: Final = SecretNumbers(known)
        self._has_secrets: Final = bool(known)
        self.longest: Final = 16 * max(map(len, known), default=0)

    def text(self, text: str) -> str:
        """The text without its secrets."""
        return render(text, self.spans(text))

    def lines(self, text: str) -> str:
        """The text without its secrets, with the same number of lines: a secret of several lines has a mark in each."""
        pieces: list[str] = []
        shown = 0
        for begin, end in self.spans(text):
            pieces += (text[shown:begin], _LINE.sub(MARK, text[begin:end]))
            shown = end
        return "".join((*pieces, text[shown:]))

    def spans(self, text: str) -> list[Span]:
        """The spans of secrets and tokens, in order. Each span is replaced by one mark."""
        found = tokens(text)
        if self._has_secrets and self._traces.fit_in(text):
            found += self._secret_spans(text)
        return merge(found) if found else found

    def may_change(self, document: bytes) -> bool:
        """Whether `value` may change the data of a JSON document. It may be wrongly True, but never wrongly False."""
        if self._numbers.known or (self._has_secrets and may_have_secret(document, self._traces)):
            return True
        return may_have_token(document)

    def partial_start(self, text: str, *, sure: bool) -> int | None:
        """The start of the end part that may begin a secret; with `sure`, only if that part has a minimum length."""
        if not self._has_secrets:
            return None
        raw = text.encode("utf-8", "surrogatepass")
        found = [place for place in self._beginnings(raw, _MIN_HELD_BACK_BYTES if sure else 1) if place is not None]
        return len(raw[: min(found)].decode("utf-8", "surrogatepass")) if found else None

    def value(self, value: Any) -> Any:
        """A field of an event without the secrets in its strings, keys and numbers.

        A number in a dict or a list may become a string. The number of a typed field stays a number: it becomes 0.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            inner = self.value if value.keys() == _TYPED_FIELDS else self._redact_nested
            return {self._redact_nested(key): inner(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return self._redact_items(value)
        return type(value)(0) if self._numbers.is_one(value) else value

    def _redact_nested(self, value: Any) -> Any:
        if isinstance(value, int | float):
            return MARK if self._numbers.has_one(value) else value
        return self.value(value)

    def _redact_items(self, items: Sequence[Any]) -> list[Any]:
        """The items of a list; a list of byte values is also searched in its text form."""
        if self._has_secrets and len(items) >= SHORTEST_ENCODED and all(type(item) is int for item in items):
            text = str(list(items))
            if self.text(text) != text:
                return [MARK]
        return [self._redact_nested(item) for item in items]

    def _secret_spans(self, text: str) -> list[Span]:
        raw = text.encode("utf-8", "surrogatepass")
        found = self._find_in_bytes(raw) if self._traces.may_be_in(raw) else []
        return found if len(raw) == len(text) else _in_characters(raw, found)

    def _find_in_bytes(self, raw: bytes) -> list[Span]:
        found = self._literal.find(raw)
        if len(raw) < SHORTEST_ENCODED:
            return found
        # Spans found so far are blanked, so that other views skip them; often nothing is left to find.
        rest = _blanked(raw, found)
        return found + self._find_encoded(rest) if not found or self._traces.may_be_in(rest) else found

    def _find_encoded(self, raw: bytes) -> list[Span]:
        found = [*self._find_projected(raw), *self._find_in_dump(raw, quoted=None)]
        layer = raw
        backs: list[Back] = []
        for _ in range(_ESCAPE_LEVELS):
            view = unescaped(layer)
            if view is None:
                break
            layer, backs = view.data, [view.back, *backs]
            spans = self._unescaped.find(layer)
            for span in (*spans, *self._find_projected(layer), *self._find_in_dump(layer, quoted=True)):
                for back in backs:
                    span = back(span)  # noqa: PLW2901  # maps back through one view after the other
                found.append(span)
        return found

    def _find_in_dump(self, raw: bytes, *, quoted: bool | None) -> list[Span]:
        dumped = dump(raw, quoted=quoted)
        return [] if dumped is None else [(start, line_end(raw, end)) for start, end in self._find_projected(dumped)]

    def _find_projected(self, raw: bytes) -> list[Span]:
        found: list[Span] = []
        for project, index in ((compact, self._compact), (hexadecimal, self._hexadecimal)):
            view = project(raw)
            found += [_with_padding(raw, view.back(span)) for span in index.find(view.data)]
        return found

    def _beginnings(self, raw: bytes, min_length: int) -> Iterable[int | None]:
        yield self._literal.partial_start(raw, min_length)
        yield from self._encoded_beginnings(raw, quoted=None)
        yield from self._unescaped_beginnings(raw)

    def _encoded_beginnings(self, raw: bytes, *, quoted: bool | None) -> Iterable[int | None]:
        for text in (raw, dump(without_half_an_offset(raw), quoted=quoted)):
            if text is not None:
                yield self._partial_start_in(compact(text), self._compact, _MIN_HELD_BACK_CHARACTERS)
                yield self._partial_start_in(hexadecimal(text), self._hexadecimal, 2 * _MIN_HELD_BACK_BYTES)

    def _unescaped_beginnings(self, raw: bytes) -> Iterable[int | None]:
        layer = raw
        backs: list[Back] = []
        for _ in range(_ESCAPE_LEVELS):
            whole = without_half_an_escape(layer)
            min_length = _MIN_HELD_BACK_BYTES - (whole != layer)
            layer, view = whole, unescaped(whole)
            if view is not None:
                layer, backs = view.data, [view.back, *backs]
            elif layer == raw:
                return
            for start_in_view in (
                self._unescaped.partial_start(layer, min_length),
                *self._encoded_beginnings(layer, quoted=True),
            ):
                yield _position_in_text(backs, start_in_view)

    @staticmethod
    def _partial_start_in(view: Any, index: NeedleIndex, min_length: int) -> int | None:
        start_in_view = index.partial_start(view.data, min_length)
        return None if start_in_view is None else int(view.back((start_in_view, start_in_view + 1))[0])


def render(text: str, spans: Iterable[Span], start: int = 0, *, marked: bool = False) -> str:
    """The text from `start` on, with each span replaced. Of a span that begins before `start`, the rest is replaced.

    With `marked`, such a rest is dropped: the part before `start` already has the mark.
    """
    pieces: list[str] = []
    first = start
    for begin, end in spans:
        if end > start:
            pieces += (text[start:begin], "" if marked and begin < first else MARK)
            start = end
    return "".join((*pieces, text[start:])) if pieces else text[start:]


def _position_in_text(backs: list[Back], place: int | None) -> int | None:
    """Maps a position in the last of several views to one in the text."""
    if place is None:
        return None
    span = (place, place + 1)
    for back in backs:
        span = back(span)
    return span[0]


def _blanked(raw: bytes, spans: list[Span]) -> bytes:
    if not spans:
        return raw
    blank = bytearray(raw)
    for start, end in spans:
        blank[start:end] = bytes(end - start)
    return bytes(blank)


def _with_padding(raw: bytes, span: Span) -> Span:
    """The span extended by the padding of base64 and base32."""
    end = span[1]
    while end < len(raw) and raw[end] == ord("=") and end - span[1] < len("======"):
        end += 1
    return span[0], end


def _in_characters(raw: bytes, spans: list[Span]) -> list[Span]:
    """Converts spans of bytes into spans of characters."""
    found: list[Span] = []
    at = count = 0
    places = {place: 0 for span in spans for place in span}
    for place in sorted(places):
        count += len(raw[at:place].decode("utf-8", "surrogatepass"))
        at, places[place] = place, count
    found += [(places[start], places[end]) for start, end in spans]
    return found
