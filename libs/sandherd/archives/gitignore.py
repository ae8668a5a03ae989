"""The rules of one list of patterns (a `.gitignore`, `info/exclude`), interpreted as git does.

Neither a library nor git itself is used: available libraries handle single paths and differ from git where one rule
negates another, and git, run within an agent's repository, executes programs that the repository's configuration names.
Names are bytes, as in git, and no pattern makes matching slow: there is no backtracking.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandherd.archives.globs import Segment, literal_length, segments

_NO_NAME: Final = re.compile(rb"(?!)")
"""Matches nothing."""


@dataclass(frozen=True)
class _Rule:
    ignores: bool
    directories_only: bool
    anywhere: bool
    """Whether the pattern is matched against the name alone, not the path."""
    literal: bytes
    """The literal beginning of the pattern."""
    rest: Sequence[Segment] | None
    """The rest of the pattern, one item for each directory; None if the whole pattern is literal."""

    def matches(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """Whether the rule matches this path."""
        if self.directories_only and not directory:
            return False
        text = name if self.anywhere else path
        if not text.startswith(self.literal):
            return False
        rest_of_text = text[len(self.literal) :]
        return not rest_of_text if self.rest is None else _match_segments(rest_of_text.split(b"/"), self.rest)


class GitignoreRules:
    """A list of rules; the last one that matches a path decides."""

    def __init__(self, content: bytes = b"") -> None:
        lines = content.removeprefix(b"\xef\xbb\xbf").split(b"\n")
        rules = [rule for line in lines if (rule := _parse_rule(line.removesuffix(b"\r"))) is not None]
        self._rules = rules[::-1]

    def verdict(self, path: bytes, *, directory: bool) -> bool | None:
        """Whether the path, relative to the list's directory, is ignored; None if no rule matches."""
        name = path.rpartition(b"/")[2]
        for rule in self._rules:
            if rule.matches(path, name, directory=directory):
                return rule.ignores
        return None


def _parse_rule(line: bytes) -> _Rule | None:
    text = _trim(line.partition(b"\0")[0])
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


def _trim(line: bytes) -> bytes:
    """The line without trailing spaces; a space that is escaped by a backslash is preserved."""
    text = line.rstrip(b" ")
    backslashes = len(text) - len(text.rstrip(b"\\"))
    return line[: len(text) + backslashes % 2]


def _match_segments(names: Sequence[bytes], rest: Sequence[Segment]) -> bool:
    """Whether all names match the segments `rest`, in order; a None in it stands for any number of names.

    On a mismatch, the last None takes one more name. The names that earlier Nones took need no revision.
    """
    name_index = segment_index = 0
    retry: tuple[int, int] | None = None
    while name_index < len(names):
        segment = rest[segment_index] if segment_index < len(rest) else _NO_NAME
        if segment is None:
            segment_index += 1
            retry = (name_index, segment_index)
        elif segment.fullmatch(names[name_index]):
            name_index, segment_index = name_index + 1, segment_index + 1
        elif retry is None:
            return False
        else:
            name_index, segment_index = retry[0] + 1, retry[1]
            retry = (name_index, segment_index)
    return all(segment is None for segment in rest[segment_index:])
