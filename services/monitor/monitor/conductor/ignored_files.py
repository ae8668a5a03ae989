"""Selects the paths of edited files that are compared, and those that may be shown to another agent. Pure.

A sandbox chooses its paths, so they are untrusted. Only plain relative paths are compared. A path that another agent
gets to read has a small set of characters, without spaces, so that it can't be read as an instruction.
"""

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from functools import lru_cache
from typing import Final

MAX_PATH: Final = 400
"""Maximum size of a path in bytes, and of the name of a branch or repository. Longer ones are not compared."""
_SAFE_PATH: Final = re.compile(r"[A-Za-z0-9._+@-]{1,64}(?:/[A-Za-z0-9._+@-]{1,64}){0,15}", re.ASCII)
_MAX_QUOTED_LENGTH: Final = 160


def is_plain(path: str) -> bool:
    """Whether this is a relative path inside a work tree, without control characters and surrogates."""
    if not is_short(path):
        return False
    return all(part not in {"", ".", ".."} for part in path.split("/"))


def is_short(text: str) -> bool:
    """Whether a text from a sandbox has at most `MAX_PATH` bytes, and neither control characters nor surrogates."""
    return text.isprintable() and 0 < len(text.encode()) <= MAX_PATH


def quote_path(path: str) -> str | None:
    """The path in quotation marks, for another agent; None if it has characters that must not be shown to an agent."""
    return f'"{path}"' if len(path) <= _MAX_QUOTED_LENGTH and _SAFE_PATH.fullmatch(path) else None


class IgnoredFiles:
    """The files whose edits are never a conflict, by shell patterns in which `*` also matches a slash.

    A pattern without a slash is compared with each part of a path, a pattern with a slash with the entire path.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        ordered = sorted(patterns)
        self._parts = _compile(pattern for pattern in ordered if "/" not in pattern)
        self._paths = _compile(pattern for pattern in ordered if "/" in pattern)
        self._matches = lru_cache(maxsize=4096)(self._is_ignored)

    def __contains__(self, path: str) -> bool:
        return self._matches(path)

    def _is_ignored(self, path: str) -> bool:
        if self._paths is not None and self._paths.fullmatch(path):
            return True
        return self._parts is not None and any(self._parts.fullmatch(part) for part in path.split("/"))


def _compile(patterns: Iterator[str]) -> "re.Pattern[str] | None":
    expression = "|".join(translate(pattern) for pattern in patterns)
    return re.compile(expression) if expression else None
