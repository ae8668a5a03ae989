"""Plain text of what a forge or an agent wrote: bounded, without control characters and other invisible ones."""

import unicodedata
from typing import Final

_REMOVED: Final = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp"})
"""Controls, formats (direction, tags, zero width), private use, surrogates, and separators of lines and paragraphs."""


def plain(text: str, limit: int) -> str:
    """One line of at most `limit` characters, which ends with `…` if it was cut."""
    line = " ".join(without_controls(text[: 4 * limit], "").split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def without_controls(text: str, preserved: str = "\n\t") -> str:
    """The text without control characters, except the preserved ones. All line endings are line feeds then."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return "".join(letter if _is_plain(letter, preserved) else _gap(letter) for letter in lines)


def _is_plain(letter: str, preserved: str) -> bool:
    return letter in preserved or unicodedata.category(letter) not in _REMOVED


def _gap(letter: str) -> str:
    """Whitespace still separates words."""
    return " " if letter.isspace() else ""
