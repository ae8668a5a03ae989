"""The event for the start of an attempt."""

from pathlib import Path

import pytest

from sandherd.contracts.events.agent import TaskKind
from sandherd.contracts.specs import TaskSpec
from sandherd_worker.attempt_events import started


@pytest.mark.parametrize("kind", [None, "review"])
def test_kind_of_work_is_stated(kind: TaskKind | None) -> None:
    """The kind is in the worker's file only if the submitter states it, because older workers refuse the field.

    It is also in the first event.
    """
    spec = TaskSpec.model_validate({"text": "look", "harness": {"kind": "command", "argv": ["true"]}, "kind": kind})
    read = TaskSpec.model_validate_json(spec.to_json())
    assert started(read, 1, Path("/work")).task_kind == kind
    assert ('"review"' in spec.to_json()) is (kind is not None)


def test_work_tree_is_stated_and_constraints_stay_with_the_spawner() -> None:
    """The first event has the work tree, for the monitor. Older workers would refuse the constraints as unknown."""
    fields = {"text": "look", "harness": {"kind": "command", "argv": ["true"]}, "constraints": {"paths": ["a"]}}
    spec = TaskSpec.model_validate(fields)
    assert started(spec, 1, Path("/home/agent/work")).work_tree == "/home/agent/work"
    assert "constraints" not in spec.to_json()
