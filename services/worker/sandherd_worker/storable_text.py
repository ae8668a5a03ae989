"""Text as the contracts accept it: characters that UTF-8 or Postgres can't store are replaced."""

import re
from typing import Final

_INVALID: Final = re.compile("[\x00\ud800-\udfff]")


def valid_text(text: str) -> str:
    """The text with U+FFFD for each NUL and each surrogate.

    A NUL may come from a program's output; a surrogate stands for a byte of a file name that is not UTF-8, or for half
    of a pair.
    """
    if "\0" not in text:
        try:
            text.encode()  # much faster than the search, and fails at a surrogate
        except UnicodeEncodeError:
            pass
        else:
            return text
    return _INVALID.sub("\N{REPLACEMENT CHARACTER}", text)
