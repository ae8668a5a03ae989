"""The event for the start of an attempt."""

from pathlib import Path

import pytest

from sandherd.contracts.events.agent import TaskKind
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.attempt_events import started


@pytest.mark.parametrize("kind", [None, "review"])
def test_kind_of_work_is_stated(kind: TaskKind | None) -> None:
    """It is in the worker's file if the submitter states it, and in the first event; a worker of before knows none."""
    spec = TaskSpec.model_validate({"text": "look", "harness": {"kind": "command", "argv": ["true"]}, "kind": kind})
    read = TaskSpec.model_validate_json(spec.to_json())
    assert started(read, 1, Path("/work")).task_kind == kind
    assert ('"review"' in spec.to_json()) is (kind is not None)


def test_work_tree_is_stated_and_constraints_stay_with_the_spawner() -> None:
    """The monitor needs to know where it is; a worker of before refuses fields that it does not know."""
    fields = {"text": "look", "harness": {"kind": "command", "argv": ["true"]}, "constraints": {"paths": ["a"]}}
    spec = TaskSpec.model_validate(fields)
    assert started(spec, 1, Path("/home/agent/work")).work_tree == "/home/agent/work"
    assert "constraints" not in spec.to_json()
