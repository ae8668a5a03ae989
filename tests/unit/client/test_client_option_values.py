"""Tests that the values of options are those of the contracts, which the command line does not import at its start."""

from enum import StrEnum
from typing import Any, get_args

import pytest

from sandherd.cli.commands.schedules import OverlapPolicy
from sandherd.cli.completion import PREFIXES
from sandherd.cli.options import OnRetry, Priority, TaskKind
from sandherd.contracts import names, specs
from sandherd.contracts.events import agent
from sandherd.contracts.schedules import Overlap


@pytest.mark.parametrize(
    ("option", "values"),
    [
        (Priority, specs.Priority),
        (TaskKind, agent.TaskKind),
        (OverlapPolicy, Overlap),
        (OnRetry, specs.TaskSpec.model_fields["on_retry"].annotation),
    ],
)
def test_option_has_the_values_of_its_contract(option: type[StrEnum], values: Any) -> None:
    """An option offers every value that its field accepts, in the same order, and no other value."""
    assert tuple(option) == get_args(values)


def test_completion_has_the_prefixes_of_names() -> None:
    """A completion requests only tasks or only sandboxes if the word begins with the prefix of one of them."""
    assert PREFIXES == {"tasks": names.TASK_PREFIX, "sandboxes": names.SANDBOX_PREFIX}
