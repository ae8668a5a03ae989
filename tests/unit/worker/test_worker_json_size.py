"""The size of values as JSON: the same as that of the JSON, and measured without writing it."""

import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandherd.contracts.states import TaskState
from sandherd_worker import json_size
from sandherd_worker.json_size import exceeds

_LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.datetimes() | st.uuids()
) | st.sampled_from([TaskState.RUNNING, "\x00", "\x7f", "\ud800", "\U0001f600", '"\\\b\f\n\r\t/', -0.0, 1e300])
_KEYS = st.text() | st.integers() | st.booleans() | st.none() | st.floats()
_VALUES = st.recursive(
    _LEAVES, lambda inner: st.lists(inner) | st.dictionaries(_KEYS, inner) | st.lists(inner).map(tuple), max_leaves=40
)


def size(value: Any) -> int:
    """The size as it was measured before: that of the written JSON."""
    return len(json.dumps(value, default=str))


@given(_VALUES, st.integers(min_value=0, max_value=600))
@example([], 2)
@example([], 1)
@example({}, 1)
@example({"a": []}, 9)
@example([math.nan, math.inf, -math.inf], 24)
@example(datetime(2026, 1, 1, tzinfo=UTC), 26)
def test_value_exceeds_a_limit_exactly_if_its_json_does(value: Any, limit: int) -> None:
    """Any limit is right, including those at and beside the size of the JSON."""
    whole = size(value)
    assert exceeds(value, limit) == (whole > limit)
    assert not exceeds(value, whole)
    assert exceeds(value, whole - 1)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"command": "ls " * 3000, "timeout": 60, "background": False}, False),
        ({"old": "a" * 5000, "new": "b" * 5000, "all": True, "lines": None}, False),
        ({"content": ["x" * 50_000] * 100}, True),
        (list(range(100_000)), True),
    ],
    ids=["command", "edit", "texts", "numbers"],
)
def test_json_is_not_written_if_its_size_is_certain(
    monkeypatch: pytest.MonkeyPatch, value: Any, expected: bool
) -> None:
    """Most inputs are smaller than the limit by any measure; a large one is measured up to the limit."""
    monkeypatch.delattr(json_size, "_is_longer")
    assert exceeds(value, 64 * 1024) == expected
