"""Which branch a task continues."""

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.repositories import Repository
from sandherd.contracts.states import BranchState
from sandherd.settings import load
from spawner.repositories.branch_choice import branch_to_continue, new_branch_name
from spawner.repositories.branch_names import rules_of
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError
from spawner.repositories.pull_request_record import PullRequestRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
TASK: Any = SimpleNamespace(life="f" * 32)
URL = "https://r/a/b"


def branch(**changes: Any) -> BranchRecord:
    known: dict[str, Any] = {
        "project": "p1", "id": "br-1", "life": "0" * 32, "tasks": ("task-1",), "repository": URL, "url": URL,
        "branch": "feature/x", "base": "main", "base_commit": "a" * 40, "commit": "b" * 40, "created_at": NOW,
        "updated_at": NOW,
    }  # fmt: skip
    return BranchRecord(**(known | changes))


@pytest.mark.parametrize(("one", "other"), [("42", "#42"), ("#42", "42"), ("#42", "#42")])
def test_ticket_is_the_same_with_and_without_its_sign(one: str, other: str) -> None:
    """`#42` and `42` are the same ticket: users and forges write both."""
    known = branch(ticket=one)
    assert branch_to_continue(TASK, Repository(url=URL, join=True, ticket=other), [known]) == known
    assert branch_to_continue(TASK, Repository(url=URL, join=True, ticket="421"), [known, branch()]) is None


def test_branch_that_can_not_be_continued_is_refused_with_the_reason() -> None:
    """A merged branch and a deleted branch have different reasons, though a merged one is deleted right after."""
    wanted = Repository(url=URL, branch="feature/x")
    merged = PullRequestRecord(shown=PullRequestView(number=1, url=URL, state="merged"))
    for known, text in (
        ([], "not a live branch"),
        ([branch(state=BranchState.DELETED)], "was deleted"),
        ([branch(state=BranchState.DELETED, pull=merged)], "was merged"),
        ([branch(state=BranchState.MERGED)], "was merged"),
    ):
        with pytest.raises(GitError, match=text):
            branch_to_continue(TASK, wanted, known)


@pytest.mark.parametrize("text", ["Deploy with canary-4b1f9e27 now", "\n\nDeploy canary-4b1f9e27,now", "4b1f9e27"])
def test_name_of_a_branch_has_no_value_of_a_secret(text: str) -> None:
    """A branch is stored, published and pushed, and its name is stored longer than the secrets of its task."""
    spec = TaskSpec(
        text=text,
        harness=CommandHarness(argv=["true"]),
        env={"TOKEN": "canary-4b1f9e27", "PART": "4b1f9e27"},
        secret_env=frozenset({"TOKEN", "PART"}),
    )
    task: Any = SimpleNamespace(task="task-1", spec=spec)
    name = new_branch_name(task, Repository(url=URL), [], rules_of(load({}, {}).settings.branch_prefixes))
    assert "canary" not in name
    assert "4b1f9e27" not in name
