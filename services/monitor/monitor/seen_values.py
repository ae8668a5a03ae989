"""A memory of limited size for values that a sandbox has published before, as marks of a few bytes. Pure.

The marks are stored as one string, because a state has thousands of them, and one string is smaller than a list, in
memory and as JSON.
"""

import zlib
from typing import Final

from monitor.facts import EndedCall

MAX_EVIDENCE_IDS: Final = 6
"""Number of event ids that a rule remembers for a sandbox: an id takes a hundred bytes."""
_MARK_LENGTH: Final = 9
"""Number of characters of a mark: a space that separates it from others, and eight hexadecimal digits."""


def mark(text: str) -> str:
    """The mark of a value. Two values have the same mark with a probability of 2^-32."""
    return f" {zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def mark_of_call(call: EndedCall) -> str:
    """The mark of a call and its result."""
    return mark(f"{call.digest} {call.result}")


def remembered(memory: str, mark: str, limit: int) -> str:
    """The memory with this mark added; unchanged if it has the mark. The oldest marks beyond `limit` are dropped."""
    return memory if mark in memory else (memory + mark)[-limit * _MARK_LENGTH :]
