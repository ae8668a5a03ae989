"""Numbers of things in the output for users."""

import pytest

from sandherd.cli.render.overview import summary
from sandherd.client.doctor.audit import audit_faults
from sandherd.client.tasks.overview import Overview
from sandherd.contracts.requests import Audit
from sandherd.plurals import pluralize


@pytest.mark.parametrize(("number", "text"), [(0, "0 tasks"), (1, "1 task"), (2, "2 tasks")])
def test_a_noun_has_the_number_of_what_is_counted(number: int, text: str) -> None:
    """One is singular, everything else plural."""
    assert pluralize(number, "task") == text


def test_one_is_singular_with_its_verb() -> None:
    """In the summary of `top`, and in the faults that `audit` reports."""
    assert summary(Overview(tasks=[])).startswith("0 unfinished tasks, 0 need a user")
    found = Audit(
        sources=[], source_count=1, event_count=1, duplicates_refused=0, unstored=0, dead=0, missing=1, conflicts=2
    )
    missing, conflicts = audit_faults(found)
    assert missing.startswith("1 event is missing")
    assert conflicts.startswith("2 events have the sequence")
