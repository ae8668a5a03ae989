"""Text as the contracts take it: what UTF-8 can't carry, and the one character that Postgres can't keep, replaced."""

import re
from typing import Final

_UNSOUND: Final = re.compile("[\x00\ud800-\udfff]")


def sound(text: str) -> str:
    """The text with U+FFFD for each NUL and each surrogate.

    A program may print the one; the other stands for a byte of a file's name that is no UTF-8, or for half of a pair.
    """
    return _UNSOUND.sub("\N{REPLACEMENT CHARACTER}", text)
