"""`sandherd branches pr|merge`, and the options of `run` for pull requests; the spawner is a double."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from sandherd.client import Herd
from sandherd.contracts.pull_requests import PullRequestOptions, PullRequestView
from sandherd.contracts.requests import BranchView, ListLiveTasks, TaskList
from sandherd.contracts.states import BranchState, TaskState
from sandherd.contracts.subjects import Principal
from tests.integration.client.conftest import Neighbours, a_task
from tests.integration.client.stored_branches import ID, TASK, URL, StoredBranches, a_branch

Sandherd = Callable[..., Any]
PULL = PullRequestView(number=7, url=f"{URL}/pulls/7", commit="b" * 40, checks="failed", failed_checks=["lint"],
                       mergeable="no", obstacle="checks")  # fmt: skip


@pytest.fixture
async def branches(neighbours: Neighbours) -> StoredBranches:
    found = StoredBranches()
    found.views = [a_branch()]
    await found.answer_all(neighbours)
    return found


def changed(**fields: Any) -> Callable[[BranchView], BranchView]:
    """The changes that a request makes to a view."""
    return lambda view: view.model_copy(update=fields)


async def test_pull_request_is_opened_and_shown(branches: StoredBranches, sandherd: Sandherd) -> None:
    """The pull request is shown with what prevents its merge."""
    branches.on_pull_request = changed(pull_request=PULL)
    status, out, _ = await sandherd("branches", "pr", TASK, "--ready")
    assert status == 0
    assert f"pull request {PULL.url} is open: checks" in out
    [request] = branches.pull_requests
    assert (request.branch, request.ready) == (ID, True)
    status, out, _ = await sandherd("branches", "list")
    assert "#7 open: checks" in out
    status, out, _ = await sandherd("branches", "show", TASK, "-o", "json")
    assert json.loads(out)["pull_request"]["failed_checks"] == ["lint"]


async def test_refused_pull_request_has_the_reason(branches: StoredBranches, sandherd: Sandherd) -> None:
    """A refused pull request shows the reason, with status 1."""
    branches.on_pull_request = changed(pull_request_problem="the token does not permit it")
    status, out, _ = await sandherd("branches", "pr", TASK)
    assert status == 1
    assert "the token does not permit it" in out


async def test_merge_is_of_the_present_commit(branches: StoredBranches, sandherd: Sandherd) -> None:
    """With `--wait` the exit status is that of the merge."""
    merged = PULL.model_copy(update={"state": "merged"})
    branches.on_merge = changed(pull_request=merged, state=BranchState.MERGED)
    assert (await sandherd("branches", "merge", TASK, "--wait"))[0] == 0
    assert [request.commit for request in branches.merges] == ["b" * 40]
    branches.views = [a_branch()]
    branches.on_merge = changed(pull_request=PULL, pull_request_problem="conflict")
    assert (await sandherd("branches", "merge", TASK, "--wait"))[0] == 1
    branches.views = [a_branch()]
    branches.on_merge = changed(pull_request=PULL, pull_request_waits=True)
    assert (await sandherd("branches", "merge", TASK))[0] == 0
    assert (await sandherd("branches", "merge", TASK, "--wait", "--timeout", "0.1s"))[0] == 1


async def test_program_opens_and_merges(branches: StoredBranches, client: Herd) -> None:
    """A program has the same methods."""
    await client.open_pull_request(TASK, ready=True, by="ada")
    await client.merge_branch(TASK, commit="b" * 40)
    assert [request.requested_by for request in branches.pull_requests] == ["ada"]
    assert [request.commit for request in branches.merges] == ["b" * 40]


async def test_run_chooses_the_pull_request(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """`--pr` and `--merge` are part of the spec; a local repository has no pull requests."""
    options = ["--repo", URL, "--pr", "ready", "--merge", "queue", "--no-follow"]
    assert (await sandherd("run", "do it", *options, "--", "true"))[0] == 0
    command: Any = await neighbours.take(Principal.SPAWNER)
    assert command.data.spec.repository.pull_request == PullRequestOptions(open="ready", merge="queue")
    status, _, err = await sandherd("run", "do it", "--repo", ".", "--pr", "draft", "--no-follow", "--", "true")
    assert status == 2
    assert "a local repository has no pull requests" in err


async def test_task_shows_the_pull_request_of_its_branch(neighbours: Neighbours, sandherd: Sandherd) -> None:
    """The task shows the checks of the pull request, and what prevents the merge."""
    await neighbours.answer(
        Principal.SPAWNER,
        ListLiveTasks,
        lambda _: TaskList(tasks=[a_task(TASK, TaskState.COMPLETED).model_copy(update={"pull_request": PULL})]),
    )
    status, out, _ = await sandherd("tasks", "get", TASK)
    assert status == 0
    shown = {line.split("  ")[0]: line.split("  ")[-1].strip() for line in out.splitlines()}
    assert (shown["pull request"], shown["checks"]) == (f"{PULL.url} (open: checks)", "failed: lint")
