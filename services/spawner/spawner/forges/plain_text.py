"""Cleans text of a forge or an agent: limits its length, and removes control and other invisible characters."""

import unicodedata
from typing import Final

_REMOVED_CATEGORIES: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Unicode categories of removed characters: control, format (direction, tags, zero width), private use, surrogate, line
and paragraph separators."""


def plain(text: str, limit: int) -> str:
    """The text as one line of at most `limit` characters. The line ends with `…` if it was truncated."""
    line = " ".join(without_controls(text[: 4 * limit], "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def without_controls(text: str, preserved: str = "\n\t") -> str:
    """The text without invisible characters, except the preserved ones. Line endings become line feeds."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(letter if _is_plain(letter, preserved) else _replacement(letter) for letter in lines)


def _is_plain(letter: str, preserved: str) -> bool:
    return letter in preserved or unicodedata.category(letter) not in _REMOVED_CATEGORIES


def _replacement(letter: str) -> str:
    """The replacement of a removed character: a space for whitespace, so that words stay separate."""
    return " " if letter.isspace() else ""
