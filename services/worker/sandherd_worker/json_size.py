"""Whether a value as JSON exceeds a size: the JSON is written only if bounds of its size leave that open."""

import json
from typing import Any, Final

_ESCAPED: Final = 6
"""Maximum characters that JSON takes for one of ASCII, as `\\u0000`."""
_SURROGATE_PAIR: Final = 12
"""Maximum characters that JSON takes for any other."""
_SHORT: Final = frozenset({int, float, bool, type(None)})
_MAX_DIFFERENCE: Final = len("Infinity") - len("inf")
"""How much longer than Python's form the JSON of one of these may be; `None` is as long as `null`."""
_MAX_PARTS: Final = 32
"""Maximum parts that are added up: writing the JSON of many small ones takes less time."""


def exceeds(value: Any, limit: int) -> bool:
    """Whether `json.dumps(value, default=str)` has more than `limit` characters. `value` contains no cycle.

    A walk over the value adds up the minimum size of each part, and by how much it may be larger. It stops when the
    minimum exceeds the limit, after `_MAX_PARTS` parts, or at a type that JSON does not have.
    """
    minimum, spread = 0, 0
    waiting = [value]
    for _ in range(_MAX_PARTS):
        if not waiting:
            return minimum + spread > limit and _is_longer(value, limit)
        item = waiting.pop()
        kind = type(item)
        if kind is str:
            minimum += 2 + len(item)
            spread += len(item) * ((_ESCAPED if item.isascii() else _SURROGATE_PAIR) - 1)
        elif kind is dict:
            minimum += 4 * len(item) or 2
            spread += 2 * len(item)  # the quotes of names that are no strings
            waiting += item
            waiting += item.values()
        elif kind is list:
            minimum += 2 * len(item) or 2
            waiting += item
        elif kind in _SHORT:
            minimum += len(repr(item))
            spread += _MAX_DIFFERENCE
        else:
            break
        if minimum + len(waiting) > limit:
            return True
    return _is_longer(value, limit)


def _is_longer(value: Any, limit: int) -> bool:
    return len(json.dumps(value, default=str)) > limit
