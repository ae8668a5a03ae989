"""State changes of a branch: what users and tasks want of its pushes is not lost."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from sandherd.contracts.commands import CommandHarness, TaskSpec
from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.branch import MAX_OVERLAPS, BranchOverlapFound
from sandherd.contracts.pull_requests import PullRequestView
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import PushBranch
from spawner.repositories import branch_transitions
from spawner.repositories.branch_record import BranchRecord, BranchSize, ReceivedCommits
from spawner.repositories.branch_workflow import BranchWorkflow
from spawner.repositories.git import GitError, GitFault
from spawner.repositories.pull_request_record import PullRequestRecord
from spawner.repositories.push_step import PushStep
from spawner.repositories.trial_merges import find_overlaps
from spawner.tasks.task_record import TaskRecord

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
BASE, COMMIT, OTHER = "a" * 40, "b" * 40, "c" * 40
BUNDLE = ArtifactRef(artifact="a", subject="s", size=1, sha256="0" * 64, chunks=1, media_type="x/y")
RECEIVED = ReceivedCommits(sandbox="sbx-1", task="task-1", commit=OTHER, bundle=BUNDLE)


def branch(**changes: Any) -> BranchRecord:
    known: dict[str, Any] = {
        "project": "p1", "id": "br-1", "life": "0" * 32, "tasks": ("task-1",), "repository": "r", "url": "https://r/a/b",
        "branch": "feature/x", "base": "main", "base_commit": BASE, "commit": COMMIT, "received": (RECEIVED,),
        "created_at": NOW, "updated_at": NOW,
    }  # fmt: skip
    return BranchRecord(**(known | changes))


def saved(record: BranchRecord) -> BranchRecord:
    return branch_transitions.saved(record, RECEIVED, size=BranchSize(), paths=[], diff=None, now=NOW)


def test_push_that_a_user_requests_while_commits_are_saved_is_done_afterwards() -> None:
    """This includes a branch that is pushed only at a user's request. Without a request, it is not pushed."""
    record = branch(push=False)
    assert not saved(record).push_wanted
    assert saved(branch_transitions.push_requested(record, PushBranch(branch="br-1"), NOW)).push_wanted
    assert saved(branch()).push_wanted
    assert not saved(branch(pushed=OTHER, push_wanted=True)).push_wanted


def test_bundles_with_objects_are_known_until_a_push_has_uploaded_them() -> None:
    """The last bundle of each sandbox with objects is known. A push of an earlier commit does not upload them all."""
    first, other = RECEIVED.model_copy(update={"commit": COMMIT}), RECEIVED.model_copy(update={"sandbox": "sbx-2"})
    record = branch(received=(), objects_in=(first,), pushed=BASE, tried=None)
    for commits, with_objects in ((RECEIVED, True), (other, True), (RECEIVED, False)):
        waits = record.model_copy(update={"received": (commits,)})
        record = branch_transitions.saved(
            waits, commits, size=BranchSize(), paths=[], diff=None, now=NOW, with_objects=with_objects
        )
    assert record.objects_in == (RECEIVED, other)
    assert branch_transitions.pushed(record, COMMIT, NOW).objects_in == (RECEIVED, other)
    assert branch_transitions.pushed(record, OTHER, NOW).objects_in == ()
    assert branch_transitions.deleted(record, NOW).objects_in == ()


async def test_commits_wait_while_their_mirror_can_not_be_restored() -> None:
    """An expired token is not a fault of the commits: they are added after it was replaced."""

    async def denied(_: BranchRecord) -> None:
        raise GitError(GitFault.DENIED, "Authentication failed")

    index, meters = SimpleNamespace(on_change=lambda _: None), SimpleNamespace(count=lambda *_, **__: None)
    live: Any = SimpleNamespace(branch_index=index, meters=meters, now=lambda: NOW)
    parts: Any = SimpleNamespace(with_branch=denied)
    with pytest.raises(GitError):
        await BranchWorkflow(live, parts, parts, parts, [])._add(branch(), RECEIVED)


@pytest.mark.parametrize("push", [True, False])
def test_task_that_begins_decides_whether_its_commits_are_pushed(push: bool) -> None:  # a column
    """The choices of earlier tasks do not count."""
    spec = TaskSpec(
        text="x",
        harness=CommandHarness(argv=["true"]),
        repository=Repository(url="https://r/a/b", branch="feature/x", push=push),
    )
    task = TaskRecord.model_validate(
        {"project": "p1", "task": "task-2", "life": "1" * 32, "spec": spec, "runtime": "process", "limits": {}}
        | {"submitted_at": NOW}
    )
    record = branch_transitions.begun_by(branch(push=not push), task, NOW)
    assert (record.push, saved(record).push_wanted) == (push, push)
    assert branch_transitions.begun_by(record, task, NOW) is record


async def test_first_push_that_a_killed_spawner_began_is_no_other_branch() -> None:
    """Git completes the push after another commit was saved. The branch has the same name, and is pushed from there."""
    record = branch_transitions.push_begun(branch(received=(), push_wanted=True), COMMIT, NOW)
    record = branch_transitions.push_begun(record.model_copy(update={"commit": OTHER}), OTHER, NOW)
    assert record.tried_commits == {COMMIT, OTHER}

    async def remote_branches() -> dict[str, str]:
        return {"feature/x": COMMIT}

    live: Any = SimpleNamespace(now=lambda: NOW, branch_index=SimpleNamespace(views=lambda: ()))
    mirror: Any = SimpleNamespace(remote_branches=remote_branches)
    unused: Any = None
    decide = await PushStep(live, unused, unused)._before_first_push(mirror, record)
    assert decide is not None
    found = decide(record)
    assert (found.remote_branch, found.pushed, found.push_wanted) == ("feature/x", COMMIT, True)
    assert found.tried_commits == set()


async def test_later_push_that_a_killed_spawner_did_not_record_is_continued() -> None:
    """The remote branch has a commit of this branch after the recorded one, so no user has pushed it."""
    history = [COMMIT, OTHER, "d" * 40]
    record = branch(received=(), push_wanted=True).model_copy(update={"pushed": COMMIT, "commit": history[2]})
    remote = {"feature/x": OTHER}

    async def contains(commit: str, ancestor: str) -> bool:
        return history.index(commit) >= history.index(ancestor)

    mirror: Any = SimpleNamespace(
        remote_branches=AsyncMock(return_value=remote),
        has_commit=AsyncMock(side_effect=lambda commit: commit in history),
        contains=contains,
    )
    mirrors: Any = SimpleNamespace(of=lambda *_: mirror, refresh=AsyncMock())
    live: Any = SimpleNamespace(now=lambda: NOW)
    approval: Any = None
    step = PushStep(live, mirrors, approval)
    stale = GitError(GitFault.CONFLICT, "stale info")
    found = (await step._refused(record, stale))(record)
    assert (found.pushed, found.push_wanted, found.problem) == (OTHER, True, None)
    remote["feature/x"] = COMMIT  # it has meanwhile gone on, and back
    refused = (await step._refused(record, stale))(record)
    assert (refused.pushed, refused.push_wanted, refused.problem) == (COMMIT, False, "not pushed: stale info")
    remote["feature/x"] = "e" * 40  # by a user
    refused = (await step._refused(record, stale))(record)
    assert (refused.pushed, refused.push_wanted) == (COMMIT, False)
    shown = refused.problem or ""
    assert "stale info" not in shown
    assert all(part in shown for part in (f"{'e' * 12}, which Sandherd did not push", COMMIT[:12], "branches fetch"))
    del remote["feature/x"]
    again = (await step._refused(refused, stale))(refused.model_copy(update={"push_wanted": True}))
    assert (again.pushed, again.push_wanted) == (None, True), "a user has renamed it, and requests the push again"


@pytest.mark.parametrize(
    ("base", "state", "anew"),
    [(OTHER, None, True), (BASE, "open", True), (BASE, "merged", True), (BASE, "closed", False), (BASE, None, False)],
)
async def test_later_commits_of_a_branch_that_its_forge_deleted_after_the_merge_are_pushed(
    base: str, state: str | None, anew: bool
) -> None:  # a row
    """They get a new remote branch. If a user deleted it without a merge, they are pushed when a user requests it."""
    shown = PullRequestView(number=1, url="https://r/1", state=state) if state else None
    record = branch(received=(), push_wanted=True, pushed=OTHER, pull=PullRequestRecord(shown=shown))
    mirror: Any = SimpleNamespace(
        remote_branches=AsyncMock(return_value={"main": base}),
        contains=AsyncMock(side_effect=lambda commit, ancestor: commit == ancestor),
    )
    mirrors: Any = SimpleNamespace(of=lambda *_: mirror, refresh=AsyncMock())
    live: Any = SimpleNamespace(now=lambda: NOW)
    approval: Any = None
    step, stale = PushStep(live, mirrors, approval), GitError(GitFault.CONFLICT, "stale info")
    decide = await step._refused(record, stale)
    by_another = record.model_copy(update={"pushed": COMMIT})
    assert decide(by_another) is by_another
    found = decide(record)
    assert (found.pushed, found.push_wanted) == (None, anew)
    assert (found.problem is None) is anew
    if not anew:
        assert "was deleted" in (found.problem or "")


def test_save_of_pushed_commits_has_the_objects_that_their_push_was_refused_without() -> None:
    """The branch is pushed again, unless only a user requests its pushes. A save without objects changes nothing."""
    record = branch_transitions.push_refused(branch(commit=OTHER), "1 objects of Git LFS are missing", "refused", NOW)
    after = branch_transitions.unchanged(record, RECEIVED, NOW, with_objects=True)
    assert (after.received, after.objects_in, after.push_wanted) == ((), (RECEIVED,), True)
    assert branch_transitions.unchanged(after, RECEIVED, NOW, with_objects=True) == after
    later = branch_transitions.unchanged(record.model_copy(update={"push": False}), RECEIVED, NOW, with_objects=True)
    assert (later.objects_in, later.push_wanted) == ((RECEIVED,), False)
    plain = branch_transitions.unchanged(record, RECEIVED, NOW)
    assert (plain.received, plain.objects_in, plain.push_wanted) == ((), (), False)


class TracedMirror:
    """A mirror whose every merge has a conflict; it notes with which commits."""

    def __init__(self) -> None:
        self.merged: list[str] = []

    async def remote_branches(self) -> dict[str, str]:
        return {"main": "of main"}

    async def has_commit(self, commit: str) -> bool:
        return True

    async def conflicts(self, head: str, base: str) -> list[str]:
        self.merged.append(base)
        return ["a"]


async def test_base_and_the_branches_that_changed_last_are_merged_on_trial() -> None:
    """The number of overlaps is limited to that of an event. The branches that changed last are first."""
    others = [
        branch(id=f"br-{number}", branch=f"feature/{number}", commit=f"of {number}", updated_at=NOW + timedelta(number))
        for number in range(MAX_OVERLAPS + 5)
    ]
    traced: Any = TracedMirror()
    found = await find_overlaps(traced, branch(), others)
    assert traced.merged == ["of main", *(f"of {number}" for number in range(MAX_OVERLAPS + 4, 5, -1))]
    assert [one.branch for one in found][:2] == ["main", f"feature/{MAX_OVERLAPS + 4}"]
    BranchOverlapFound(repository="r", branch="b", commit="c", overlaps=list(found))
