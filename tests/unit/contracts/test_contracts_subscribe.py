"""The `start` of a subscription: which values are accepted, and what a refusal states."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from sandherd.contracts.errors import ContractError
from sandherd.contracts.requests import Subscribe

EARLY = "it has to be at least 2000-01-01T00:00:00Z"
NEITHER = "neither 'new', 'all', a stream sequence, nor a time in ISO 8601"


def request(start: Any) -> Subscribe:
    return Subscribe.model_validate_json(json.dumps({"name": "copy", "start": start}), strict=True)


@pytest.mark.parametrize("start", ["new", "all", 1, 2**53 - 1, "2026-11-27T12:00:00Z", "2000-01-01T02:00:00+02:00"])
def test_start_is_accepted(start: Any) -> None:
    """A start may be a word, a sequence number, or a time with an offset."""
    assert json.loads(request(start).model_dump_json())["start"]


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        ("1970-01-01T00:00:00Z", EARLY),
        ("0001-01-01T00:00:00Z", EARLY),
        ("9999-12-31T23:59:59Z", "it has to be less than 2200-01-01T00:00:00Z"),
        ("2026-11-27T12:00:00", "it has to have an offset from UTC, such as 2026-11-20T12:00:00Z"),
        (0, "it has to be at least 1"),
        (2**53, "it has to be at most 9007199254740991"),
        ("2h", NEITHER),
        (True, NEITHER),
        (None, NEITHER),
        ([1], NEITHER),
    ],
)
def test_refused_start_states_the_limit(start: Any, reason: str) -> None:
    """A time or a number out of range is refused with the limit; any other value with a list of what is valid."""
    with pytest.raises(ValidationError) as refused:
        request(start)
    problem = ContractError.from_validation(refused.value).problem
    assert (problem.field, problem.message) == ("start", f"start: {reason}")
