"""Options of iterations on the command line."""

from typing import Any

import pytest

from sandherd.cli.parse.iterations import continuous
from sandherd.client.errors import HerdError, validated
from sandherd.contracts.continuous import Continuous

NONE: dict[str, Any] = dict.fromkeys(
    ("until", "until_said", "check_timeout", "iterations", "cost", "duration", "errors")
)


def test_task_without_options_runs_once() -> None:
    """The task's document has no such field."""
    assert continuous(**NONE) is None


def test_every_option_sets_its_field() -> None:
    """Costs are in dollars here and in millionths there; times have units."""
    found = continuous(
        until="make test", until_said="DONE", check_timeout="5m", iterations=4, cost=1.5, duration="2h", errors=2
    )
    assert found is not None
    assert validated(Continuous, **found).model_dump() == {
        "max_iterations": 4,
        "max_cost_micro_usd": 1_500_000,
        "max_duration_seconds": 7200,
        "max_consecutive_errors": 2,
        "completion_signal": "DONE",
        "completion_threshold": 1,
        "validation": {"command": "make test", "timeout_seconds": 300},
    }


@pytest.mark.parametrize("limit", [{"iterations": 3}, {"cost": 1.0}, {"check_timeout": "5s"}])
def test_limit_without_a_criterion_is_refused(limit: dict[str, Any]) -> None:
    """The iterations would never be done; the error states what is missing."""
    with pytest.raises(HerdError) as raised:
        continuous(**{**NONE, **limit})
    assert "--until" in (raised.value.problem.remedy or "")


def test_invalid_iteration_is_refused_by_its_field() -> None:
    """A batch file may contain one."""
    with pytest.raises(HerdError, match="there is no completion criterion"):
        validated(Continuous, max_iterations=3)
