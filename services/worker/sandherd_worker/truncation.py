"""Limits the size of an event: content that is too large is stored as an artifact; its beginning stays in the event."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sandherd_worker.artifact_records import JSON, TEXT
from sandherd_worker.json_size import exceeds

StoreArtifact = Callable[[bytes, str], Any]
"""Takes content and its media type; returns the reference that replaces it in the event."""


@dataclass(frozen=True)
class SizeBudget:
    """Maximum length of a string in characters, and of a structure as JSON in bytes."""

    string: int
    beginning: int
    """How many characters of a longer string stay in the event."""
    structure: int


WIDE: Final = SizeBudget(string=50_000, beginning=4096, structure=64 * 1024)
NARROW: Final = SizeBudget(string=2048, beginning=1024, structure=4096)
"""For an event that is too large with `WIDE`, as with many long fields, or characters that JSON writes as six."""


@dataclass
class TruncatedFields:
    """The fields after truncation, and references to the stored content, by its path in the event (`input.content`)."""

    fields: dict[str, Any]
    artifacts: dict[str, Any] = field(default_factory=dict)


def truncate(fields: dict[str, Any], budget: SizeBudget, store: StoreArtifact) -> TruncatedFields:
    """The event's fields, with long strings cut and large structures emptied; the originals become artifacts."""
    truncation = _Truncation(budget, store)
    for name, value in fields.items():
        large = isinstance(value, str | dict | list)
        cut = truncation.empty_if_large(truncation.cut(value, name), value, name) if large else value
        truncation.result.fields[name] = cut
    return truncation.result


class _Truncation:
    def __init__(self, budget: SizeBudget, store: StoreArtifact) -> None:
        self.result = TruncatedFields({})
        self._budget = budget
        self._store = store

    def cut(self, value: Any, path: str) -> Any:
        """The value with its long strings cut. `path`: where the value is in the event."""
        if isinstance(value, str):
            return self._cut_text(value, path)
        if isinstance(value, dict):
            return {key: self.cut(item, f"{path}.{key[:64]}") for key, item in value.items()}
        if isinstance(value, list):
            return [self.cut(item, f"{path}.{index}") for index, item in enumerate(value)]
        return value

    def empty_if_large(self, cut: Any, whole: Any, path: str) -> Any:
        """Store a structure that is still too large as JSON, and return an empty structure of its type instead."""
        if not isinstance(cut, dict | list) or not exceeds(cut, self._budget.structure):
            return cut
        document = json.dumps(whole, ensure_ascii=False, default=str)
        self.result.artifacts[path] = self._store(document.encode("utf-8", "replace"), JSON)
        return type(cut)()

    def _cut_text(self, text: str, path: str) -> str:
        if len(text) <= self._budget.string:
            return text
        content = text.encode("utf-8", "replace")
        self.result.artifacts[path] = self._store(content, TEXT)
        return f"{text[: self._budget.beginning]}… [{len(content)} bytes, whole in artifacts.{path}]"
