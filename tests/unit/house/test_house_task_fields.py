"""A task's field is declared once: every view has it, or a reason not to."""

import pytest

from tests.unit.house.task_fields import VIEWS, View, problems


def test_every_view_has_every_field_or_a_reason_not_to() -> None:
    """What is missing is named with the file to change."""
    assert problems() == []


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_new_field_is_missed_in_every_view(view: View) -> None:
    """A field added without an entry in the views is reported for each."""
    (problem,) = view.problems([*_fields(view), "owner"])
    assert problem.startswith(f"TaskSpec.owner is not in {view.name}: add it in {view.file}, or state the reason in ")


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_a_field_that_was_deleted_is_missed_in_no_list(view: View) -> None:
    """A reason for nothing would be taken for one later."""
    if view.left_out:
        gone = min(view.left_out)
        (problem,) = view.problems([name for name in _fields(view) if name != gone])
        assert problem.startswith(f"{view.name}: {gone} is no field of TaskSpec")


def _fields(view: View) -> list[str]:
    """Fields that this view agrees with."""
    return [*view.left_out, *view.other_names]
