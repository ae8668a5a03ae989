"""Making an event fit: what is too large in it is put aside, and a beginning of it stays."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd_worker.artifacts import JSON, TEXT

PutAside = Callable[[bytes, str], Any]
"""Takes content and its media type, and returns what stands for it in the event."""


@dataclass(frozen=True)
class Room:
    """How long one string may be and how much of a longer one stays (characters), and a structure as JSON (bytes)."""

    string: int
    kept: int
    structure: int


WIDE: Final = Room(string=50_000, kept=4096, structure=64 * 1024)
NARROW: Final = Room(string=2048, kept=1024, structure=4096)
"""For an event that is too large all the same: many long fields, or characters that JSON writes as six."""


@dataclass
class Fitted:
    """The fields as they fit, and what was put aside, by where it stood (`input.content`)."""

    fields: dict[str, Any]
    aside: dict[str, Any] = field(default_factory=dict)


def fit(fields: dict[str, Any], room: Room, put_aside: PutAside) -> Fitted:
    """The fields of an event, with long strings cut and heavy structures emptied; each is put aside whole."""
    fitter = _Fitter(room, put_aside)
    for name, value in fields.items():
        fitter.fitted.fields[name] = fitter.lighten(fitter.cut(value, name), value, name)
    return fitter.fitted


class _Fitter:
    def __init__(self, room: Room, put_aside: PutAside) -> None:
        self.fitted = Fitted({})
        self._room = room
        self._put_aside = put_aside

    def cut(self, value: Any, place: str) -> Any:
        """The value with its long strings cut."""
        if isinstance(value, str):
            return self._cut_text(value, place)
        if isinstance(value, dict):
            return {key: self.cut(item, f"{place}.{key[:64]}") for key, item in value.items()}
        if isinstance(value, list):
            return [self.cut(item, f"{place}.{index}") for index, item in enumerate(value)]
        return value

    def lighten(self, cut: Any, whole: Any, place: str) -> Any:
        """A structure that weighs too much even so is put aside as JSON; an empty one of its kind stays."""
        if not isinstance(cut, dict | list) or len(json.dumps(cut, default=str)) <= self._room.structure:
            return cut
        document = json.dumps(whole, ensure_ascii=False, default=str)
        self.fitted.aside[place] = self._put_aside(document.encode("utf-8", "replace"), JSON)
        return type(cut)()

    def _cut_text(self, text: str, place: str) -> str:
        if len(text) <= self._room.string:
            return text
        content = text.encode("utf-8", "replace")
        self.fitted.aside[place] = self._put_aside(content, TEXT)
        return f"{text[: self._room.kept]}… [{len(content)} bytes, whole in artifacts.{place}]"
