"""Until when an agent goes round, as a command line says it."""

from typing import Any

import pytest

from sandherd.client.cli.rounds import rounds
from sandherd.client.errors import HerdError, made
from sandherd.contracts.continuous import Continuous

NONE: dict[str, Any] = dict.fromkeys(
    ("until", "until_said", "check_timeout", "iterations", "cost", "duration", "errors")
)


def test_without_an_option_a_task_is_done_once() -> None:
    """Nothing is said of it in the task."""
    assert rounds(**NONE) is None


def test_every_option_has_its_place_in_the_task() -> None:
    """Money is in dollars here and in millionths there; times have units."""
    found = rounds(
        until="make test", until_said="DONE", check_timeout="5m", iterations=4, cost=1.5, duration="2h", errors=2
    )
    assert found is not None
    assert made(Continuous, **found).model_dump() == {
        "max_iterations": 4,
        "max_cost_micro_usd": 1_500_000,
        "max_duration_seconds": 7200,
        "max_consecutive_errors": 2,
        "completion_signal": "DONE",
        "completion_threshold": 1,
        "validation": {"command": "make test", "timeout_seconds": 300},
    }


@pytest.mark.parametrize("limit", [{"iterations": 3}, {"cost": 1.0}, {"check_timeout": "5s"}])
def test_a_limit_without_an_end_is_refused(limit: dict[str, Any]) -> None:
    """It would never be done; the error says what is missing."""
    with pytest.raises(HerdError) as raised:
        rounds(**{**NONE, **limit})
    assert "--until" in (raised.value.problem.remedy or "")


def test_a_task_that_can_not_be_done_is_refused_by_its_field() -> None:
    """As a file of tasks may ask for one."""
    with pytest.raises(HerdError, match="nothing says when it is done"):
        made(Continuous, max_iterations=3)
