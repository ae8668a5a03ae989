"""Decides whether a value as JSON exceeds a size. The JSON is only written if an estimate does not decide it."""

import json
from typing import Any, Final

_ESCAPED: Final = 6
"""Maximum characters in JSON for one ASCII character, as `\\u0000`."""
_SURROGATE_PAIR: Final = 12
"""Maximum characters in JSON for one character outside ASCII."""
_SHORT: Final = frozenset({int, float, bool, type(None)})
_MAX_DIFFERENCE: Final = len("Infinity") - len("inf")
"""How much longer the JSON of a value of these types may be than its `repr`; `None` is as long as `null`."""
_MAX_PARTS: Final = 32
"""Maximum parts of which the sizes are added up: for more parts, writing the JSON takes less time."""


def exceeds(value: Any, limit: int) -> bool:
    """Whether `json.dumps(value, default=str)` has more than `limit` characters. `value` contains no cycle.

    Adds up the minimum size of each part of the value, and how much larger each part may be. Stops when the minimum
    exceeds the limit, after `_MAX_PARTS` parts, or at a type that JSON does not have.
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
            spread += 2 * len(item)  # the quotes of names that are not strings
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
