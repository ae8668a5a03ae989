"""The size of an entry in a file of tasks: YAML's aliases can make a large one from a few hundred bytes."""

from collections.abc import Mapping
from typing import Any, Final

MAX_VALUES: Final = 10_000
"""Maximum of values in an entry, each counted as often as aliases repeat it."""
MAX_DEPTH: Final = 32
MAX_TASKS: Final = 10_000
"""Maximum of combinations of all matrices of a file."""


def is_too_large(entry: Any) -> bool:
    """Whether an entry has more than `MAX_VALUES` values, or is nested more deeply than `MAX_DEPTH`."""
    return _values(entry, MAX_DEPTH, 0) > MAX_VALUES


def _values(value: Any, depth: int, found: int) -> int:
    """`found` and how many values there are in it; at most one more than the maximum, also if it is too deep."""
    if depth == 0:
        return MAX_VALUES + 1
    found += 1
    inner = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, Mapping) else ()
    for one in inner:
        if found > MAX_VALUES:
            break
        found = _values(one, depth - 1, found)
    return found
