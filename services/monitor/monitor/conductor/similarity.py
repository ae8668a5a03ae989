"""The similarity of two tasks: of their titles, and of the files that they edit. Pure.

Titles are compared by the exact Jaccard index of their shingles (`SHINGLE_TOKENS` consecutive tokens). For hundreds of
tasks, no approximation such as MinHash is needed.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

SHINGLE_TOKENS: Final = 3
"""Number of tokens of a shingle."""
TEXT_WEIGHT: Final = 0.45
FILES_WEIGHT: Final = 0.20
"""The weights of PRSense for text and files. Its third, 0.35 for the meaning of diffs, needs a model and is left out;
these two are divided by their sum."""
THRESHOLD: Final = 0.7
"""The similarity from which two tasks are duplicates, if both have edited files (the threshold of OmoiOS)."""
TEXT_THRESHOLD: Final = 0.92
"""The threshold for the titles alone, until both have edited files (the threshold of Hephaestus for equal tasks)."""
HYSTERESIS: Final = 0.1
"""An open finding is withdrawn when the similarity is this much below its threshold."""
CANDIDATE: Final = 0.3
"""Minimum similarity of the titles of two tasks that are compared further. Below it they can't be duplicates: even with
equal files, the total would be .52."""
_TOKEN_PATTERN: Final = re.compile(r"[\w./#:@-]*\w", re.UNICODE)
_IDENTIFIER_SIGN: Final = re.compile(r"[0-9./#_:@]")


@dataclass(frozen=True, slots=True)
class TaskTitle:
    """A title, in the form in which it is compared."""

    normal: str
    """Its tokens in lower case, with a space between."""
    shingles: frozenset[tuple[str, ...]]
    """Empty for a title with fewer tokens than a shingle: such a title is too short to be compared."""
    identifiers: frozenset[str]
    """Its tokens with digits, dots, slashes and the like: numbers of tickets, paths, names in code."""


@dataclass(frozen=True, slots=True)
class Similarity:
    """The similarity of two tasks, from 0 to 1."""

    text: float
    files: float | None
    """None if at least one of them has not edited a file yet."""

    @property
    def total(self) -> float:
        """The weighted mean of both values, or `text` if `files` is not known."""
        if self.files is None:
            return self.text
        return (TEXT_WEIGHT * self.text + FILES_WEIGHT * self.files) / (TEXT_WEIGHT + FILES_WEIGHT)

    def is_duplicate(self, *, was_duplicate: bool) -> bool:
        """Whether the tasks are duplicates. `was_duplicate`: whether they were duplicates before."""
        limit = TEXT_THRESHOLD if self.files is None else THRESHOLD
        return self.total >= (limit - HYSTERESIS if was_duplicate else limit)


def title_of(text: str) -> TaskTitle:
    """A task's title, in the form in which it is compared."""
    tokens = _TOKEN_PATTERN.findall(text.casefold())
    shingles = frozenset(tuple(tokens[at : at + SHINGLE_TOKENS]) for at in range(len(tokens) - SHINGLE_TOKENS + 1))
    return TaskTitle(" ".join(tokens), shingles, frozenset(token for token in tokens if _IDENTIFIER_SIGN.search(token)))


def jaccard(first: AbstractSet[object], second: AbstractSet[object]) -> float:
    """The size of the intersection divided by that of the union; 0 for two empty sets."""
    shared = len(first & second)
    union = len(first) + len(second) - shared
    return shared / union if union else 0.0


def text_similarity(title: TaskTitle, other: TaskTitle) -> float:
    """The similarity of two titles.

    It is 0 if each has an identifier that the other lacks: such titles come from one template.
    """
    if title.identifiers - other.identifiers and other.identifiers - title.identifiers:
        return 0.0
    return jaccard(title.shingles, other.shingles)


def similarity(text: float, edits: Mapping[str, object], other_edits: Mapping[str, object]) -> Similarity:
    """The similarity of two tasks: of their titles, and of the files that each has edited, by path."""
    return Similarity(text, jaccard(edits.keys(), other_edits.keys()) if edits and other_edits else None)
