"""Finds numbers in JSON that are too large for a double: some parsers refuse them, and Python's reads infinity. Pure.

Nearly every document has none, and this is called for each event of a page. So fast searches find places that may be
part of such a number, and only these are looked at.
"""

import re
from typing import Final

_EXPONENT: Final = re.compile(rb"e(?<=[0-9]e)\+?[0-9]{3}")
"""An exponent of at least three digits. The digit before is checked last: a search for one letter is fast."""
_UPPER_EXPONENT: Final = re.compile(rb"E(?<=[0-9]E)\+?[0-9]{3}")
_DIGITS: Final = b"0123456789."
_BEFORE_NUMBER: Final = b":,[ \t\r\n"
_STRIDE: Final = 100
"""A number whose exponent has at most two digits is too large only with at least 210 digits. If one byte of each 100 is
looked at, at least two of these bytes, one after the other, are in such a number."""
_TWO_DIGITS: Final = re.compile(rb"[0-9.](?=[0-9.])")


def may_have_huge_number(document: bytes) -> bool:
    """Whether JSON may have a number that is too large for a double; True also for some texts that look like one."""
    return (
        (_EXPONENT.search(document) is not None and _has_exponent(document, _EXPONENT))
        or (b"E" in document and _has_exponent(document, _UPPER_EXPONENT))
        or (_TWO_DIGITS.search(document[::_STRIDE]) is not None and _has_long_number(document))
    )


def _has_exponent(document: bytes, pattern: "re.Pattern[bytes]") -> bool:
    return any(_ends_number(document[: match.start()]) for match in pattern.finditer(document))


def _has_long_number(document: bytes) -> bool:
    starts = (match.start() * _STRIDE for match in _TWO_DIGITS.finditer(document[::_STRIDE]))
    return any(not document[start : start + _STRIDE].strip(_DIGITS) for start in starts)


def _ends_number(head: bytes) -> bool:
    """Whether the digits at the end of `head` begin where a number may begin, and not in a name or an id."""
    return head.rstrip(_DIGITS).removesuffix(b"-")[-1:] in _BEFORE_NUMBER
