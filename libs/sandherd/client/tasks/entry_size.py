"""The size of an entry in a file of tasks. With YAML's aliases, a few hundred bytes can make a very large entry."""

from collections.abc import Mapping
from typing import Any, Final

MAX_VALUES: Final = 10_000
"""Maximum number of values in an entry. A value is counted as often as aliases repeat it."""
MAX_DEPTH: Final = 32
"""Maximum number of lists and mappings inside each other."""
MAX_TASKS: Final = 10_000
"""Maximum number of tasks in a file, and of combinations of all its matrices."""


def is_too_large(entry: Any) -> bool:
    """Whether an entry has more than `MAX_VALUES` values, or is nested more deeply than `MAX_DEPTH`."""
    return _count_values(entry, MAX_DEPTH, 0) > MAX_VALUES


def _count_values(value: Any, depth: int, count: int) -> int:
    """`count` plus the number of values in `value`; `MAX_VALUES` + 1 if there are more, or if they are too deep."""
    if depth == 0:
        return MAX_VALUES + 1
    count += 1
    inner = value if isinstance(value, list) else [*value, *value.values()] if isinstance(value, Mapping) else ()
    for inner_value in inner:
        if count > MAX_VALUES:
            break
        count = _count_values(inner_value, depth - 1, count)
    return count
