"""The rules of one list of patterns (a `.gitignore`, `info/exclude`), read as git reads them.

Not a library's and not git's own: what there is to import tells of single paths and decides otherwise than git where
a rule takes back what another names, and git, asked within an agent's repository, runs what that repository's
configuration names. Names are bytes, as they are to git, and no pattern makes matching slow: nothing is tried twice.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandherd_worker.globbing import Segment, literal_length, segments

_NO_NAME: Final = re.compile(rb"(?!)")


@dataclass(frozen=True)
class _Rule:
    ignores: bool
    directories_only: bool
    anywhere: bool
    """Whether the name alone is asked for, not the path."""
    literal: bytes
    """How what it names begins."""
    rest: Sequence[Segment] | None
    """How it goes on, by directories; None if it does not."""

    def names(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """Whether it is about this path."""
        if self.directories_only and not directory:
            return False
        asked = name if self.anywhere else path
        if not asked.startswith(self.literal):
            return False
        left = asked[len(self.literal) :]
        return not left if self.rest is None else _fits(left.split(b"/"), self.rest)


class Rules:
    """The last rule that is about a path decides."""

    def __init__(self, content: bytes = b"") -> None:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        found = [rule for line in lines if (rule := _rule(line.removesuffix(b"\r"))) is not None]
        self._rules = found[::-1]

    def verdict(self, path: bytes, *, directory: bool) -> bool | None:
        """Whether the path, relative to where the list holds, is ignored; None if no rule is about it."""
        name = path.rpartition(b"/")[2]
        for rule in self._rules:
            if rule.names(path, name, directory=directory):
                return rule.ignores
        return None


def _rule(line: bytes) -> _Rule | None:
    text = _trimmed(line.partition(b"\0")[0])
    if line.startswith(b"#") or not text:
        return None
    ignores = not text.startswith(b"!")
    text = text.removeprefix(b"!")
    directories_only = text.endswith(b"/")
    text = text.removesuffix(b"/")
    anywhere = b"/" not in text
    text = text.removeprefix(b"/")
    length = literal_length(text)
    rest = None if length == len(text) else segments(text[length:], whole=anywhere)
    return _Rule(ignores, directories_only, anywhere, text[:length], rest)


def _trimmed(line: bytes) -> bytes:
    """The line without the blanks at its end; one behind a backslash stays."""
    text = line.rstrip(b" ")
    backslashes = len(text) - len(text.rstrip(b"\\"))
    return line[: len(text) + backslashes % 2]


def _fits(names: Sequence[bytes], rest: Sequence[Segment]) -> bool:
    """Whether all names fit, one after the other; a None stands for any number of them.

    If one does not fit, the last None takes one more: what those before it took need never be thought over.
    """
    at = place = 0
    again: tuple[int, int] | None = None
    while at < len(names):
        wanted = rest[place] if place < len(rest) else _NO_NAME
        if wanted is None:
            place += 1
            again = (at, place)
        elif wanted.fullmatch(names[at]):
            at, place = at + 1, place + 1
        elif again is None:
            return False
        else:
            at, place = again[0] + 1, again[1]
            again = (at, place)
    return all(one is None for one in rest[place:])
