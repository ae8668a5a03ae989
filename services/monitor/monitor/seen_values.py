"""A bounded memory of values that a sandbox has published before, in a few bytes each. Pure.

The marks are stored as one string: a state has thousands of them, and a string takes the least memory in Python and
JSON.
"""

import zlib
from typing import Final

from monitor.facts import EndedCall

EVIDENCE: Final = 6
"""How many ids of events these rules remember for a sandbox: an id takes a hundred bytes."""
_WIDTH: Final = 9
"""Characters of a mark: eight hexadecimal digits, and a space that separates it from others."""


def mark(text: str) -> str:
    """The mark of a value. Two values have the same one with a probability of 2^-32."""
    return f" {zlib.crc32(text.encode('utf-8', 'replace')):08x}"


def mark_of_call(call: EndedCall) -> str:
    """The mark of a call and its result."""
    return mark(f"{call.digest} {call.result}")


def remembered(memory: str, mark: str, limit: int) -> str:
    """The memory with one more mark, of at most `limit`: the oldest ones are dropped. Known ones are unchanged."""
    return memory if mark in memory else (memory + mark)[-limit * _WIDTH :]
