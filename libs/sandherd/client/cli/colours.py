"""Colours, on a terminal only; NO_COLOR (no-color.org) turns them off."""

import os
import sys
from typing import Final

_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "blue": "34", "cyan": "36"}


class Paint:
    """Colours text, or leaves it as it is."""

    def __init__(self, *, on: bool) -> None:
        self.on = on

    @classmethod
    def for_screen(cls) -> "Paint":
        """On if standard output is a terminal that wants colours."""
        return cls(on=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))

    def __call__(self, text: str, colour: str | None) -> str:
        """The text in a colour."""
        return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if self.on and colour else text
