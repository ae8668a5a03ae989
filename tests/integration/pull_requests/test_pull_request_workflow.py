"""The workflow of a pull request at GitHub, with a real broker, real git, and the double of the forge."""

import asyncio

import pytest

from sandherd.bus.lease import LeaseLostError
from sandherd.contracts.pull_requests import PullRequestOptions, PullRequestView
from sandherd.contracts.requests import PushBranch
from sandherd.contracts.states import BranchState, TaskState
from spawner.forges.faults import ForgeError
from spawner.pull_requests.gauges import state_of
from spawner.pull_requests.pull_request_workflow import PullRequestWorkflow
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.branch_transitions import Decide, push_requested
from tests.doubles.forges.github_faults import secondary_limit
from tests.doubles.forges.replies import Reply
from tests.integration.pull_requests.world import MERGED, PACE, READY, Held, Killed, KilledWorkflow, World
from tests.patience import PATIENCE
from tests.polling import eventually

FEWEST = 2 + 2 * 5 + 2
"""The number of requests to find and create it, to poll it until its mergeability is computed, and to merge it."""


def shown(record: BranchRecord) -> PullRequestView:
    """The current pull request."""
    view = record.pull.view() if record.pull else None
    assert view is not None
    return view


async def test_pull_request_is_opened_polled_merged_and_its_branch_deleted(world: World) -> None:
    """The steps follow the configuration, without a user, and with the minimum of requests."""
    await world.branch(MERGED)
    record = await world.run()
    pulls = world.site.shop.pulls
    assert (list(pulls), pulls[1].title, pulls[1].draft) == ([1], "Add up", False)
    assert shown(record).number == 1
    opening = world.site.double.calls.by_operation()
    assert (opening["pulls/list"], opening["pulls/create"], opening["pulls/update"]) == (1, 1, 0)
    await world.poll()
    calls = world.site.double.calls
    assert calls.number("pulls/merge") == 1
    assert pulls[1].merged
    assert calls.number() == FEWEST

    async def deleted() -> bool:
        return (await world.record()).state is BranchState.DELETED

    await eventually(deleted)
    assert world.site.shop.git.head("feature/sum") is None
    assert [one["commit"] for one in await world.published("branch.merged", 1)] == [world.site.shop.git.head("main")]
    await world.published("branch.pull_request_opened", 1)


async def test_nothing_is_opened_before_the_last_attempt_has_ended(world: World) -> None:
    """A pull request is not opened before, nor if none is configured."""
    await world.branch(READY, state=TaskState.RUNNING)
    await world.run()
    assert not world.site.shop.pulls


async def test_spawner_that_is_killed_after_any_step_repeats_it_without_a_second_effect(world: World) -> None:
    """If the spawner ends after each step, before it is written, there is one pull request and one merge."""
    KilledWorkflow.killed = set()
    await world.branch(MERGED, state=TaskState.FAILED)
    await run_killed(world)
    assert world.site.shop.pulls[1].draft
    await world.ends(TaskState.COMPLETED)
    for _ in range(4):
        await run_killed(world)
        world.pass_time()
    assert {"opened", "made_ready", "polled", "merge_attempted"} == KilledWorkflow.killed
    assert list(world.site.shop.pulls) == [1]
    calls = world.site.double.calls
    assert (calls.number("pulls/create"), calls.number("pulls/merge")) == (1, 1)
    await world.published("branch.merged", 1)
    await world.published("branch.pull_request_opened", 1)


async def run_killed(world: World) -> None:
    """Run until no step is left; the spawner is killed once after each kind of step."""
    while True:
        try:
            await world.run(KilledWorkflow)
        except Killed:
            continue
        return


async def test_lost_response_creates_no_second_pull_request(world: World) -> None:
    """An error of GitHub's proxy after the creation took effect creates no second one either."""
    await world.branch(READY)
    world.site.double.lose("pulls/create")
    with pytest.raises(ForgeError):
        await world.run()
    await world.run()
    assert list(world.site.shop.pulls) == [1]
    await world.published("branch.pull_request_opened", 1)


async def test_failed_checks_are_not_merged_and_passed_ones_once(world: World) -> None:
    """Failed checks prevent the merge even if the forge does not require them; the events have the checks."""
    await world.branch(MERGED)
    world.site.shop.report_check(world.site.head(), "tests", "failure", world.live.now())
    await world.run()
    record = await world.poll()
    assert (shown(record).checks, shown(record).failed_checks) == ("failed", ["tests"])
    assert world.site.double.calls.number("pulls/merge") == 0
    world.site.shop.report_check(world.site.head(), "tests", "success", world.live.now())
    await world.poll()
    assert world.site.double.calls.number("pulls/merge") == 1
    updates = await world.events_of("branch.pull_request_updated")
    assert {"failed", "passed"} <= {one["pull_request"]["checks"] for one in updates}


async def test_another_head_is_never_merged(world: World) -> None:
    """After a user's push since the last poll GitHub responds 409, and the unchecked head stays unmerged."""
    await world.branch(READY)
    await world.run()
    await world.poll()
    await world.request_merge()
    moved = world.site.shop.git.commit("feature/sum", {"evil.py": "1\n"}, "by a user")
    await world.poll()
    assert not world.site.shop.pulls[1].merged
    assert not world.site.shop.git.contains(world.site.shop.git.head("main") or "", moved)
    [refused] = await world.published("branch.pull_request_refused", 1)
    assert (refused["step"], refused["code"]) == ("merge", "head_moved")


async def test_merge_at_the_forge_with_more_commits_merges_the_branch(world: World) -> None:
    """As after "Update branch", the mirror has what was merged, which contains the branch's commit."""
    await world.branch(READY)
    await world.run()
    pull, double = world.site.shop.pulls[1], world.site.double
    pull.head_sha = world.site.shop.git.commit("feature/sum", {"more.py": "1\n"}, "by a user")
    double._merge(world.site.shop, pull, "merge")  # type: ignore[attr-defined]  # as a user does
    record = await world.poll(1)
    assert record.state is not BranchState.LIVE
    await world.published("branch.merged", 1)


async def test_squash_of_a_moved_head_whose_branch_is_gone_merges_the_branch(world: World) -> None:
    """The forge still has the head of the pull request: no second one is opened for a merged head."""
    await world.branch(READY)
    await world.run()
    shop, double = world.site.shop, world.site.double
    pull = shop.pulls[1]
    pull.head_sha = shop.git.commit("feature/sum", {"more.py": "1\n"}, "by a user")
    double._merge(shop, pull, "squash")  # type: ignore[attr-defined]  # as a user does
    shop.git.run("update-ref", "refs/pull/1/head", pull.head_sha)
    shop.git.run("update-ref", "-d", "refs/heads/feature/sum")
    record = await world.poll(1)
    assert record.state is not BranchState.LIVE
    await world.published("branch.merged", 1)
    assert list(shop.pulls) == [1]


async def test_paths_are_approved_for_the_base_as_it_is_before_the_merge(world: World) -> None:
    """After a user has retargeted the pull request, a path that the merge would add to that base needs approval."""
    git = world.site.shop.git
    git.commit("develop", {"d.txt": "1\n"}, "develop", base="main")
    git.run("update-ref", "refs/heads/feature/sum", git.commit("main", {"ci/x": "1\n"}, "workflow"))
    git.commit("feature/sum", {"sum.py": "total = 2\n"}, "sum")
    await world.branch(MERGED)
    await world.run()
    world.site.shop.pulls[1].base = "develop"
    record = await world.poll()
    assert (record.approve, world.site.double.calls.number("pulls/merge")) == (("ci/x",), 0)
    [refused] = await world.published("branch.pull_request_refused", 1)
    assert (refused["step"], refused["code"]) == ("merge", "needs_approval")
    request = PushBranch(branch=record.id, approved_commit=record.commit)
    await world.change(lambda one: push_requested(one, request, world.live.now()))

    async def pushed() -> bool:
        return not (await world.record()).push_wanted

    await eventually(pushed)
    await world.poll()
    assert world.site.shop.pulls[1].merged


async def test_merge_queue_is_used_once_and_followed_to_the_merge(world: World) -> None:
    """If the queue takes too long, that is shown, and the pull request is added again."""
    world.site.shop.protect("main", merge_queue=True)
    await world.branch(PullRequestOptions(open="ready", merge="queue"))
    await world.run()
    record = await world.poll()
    assert world.site.shop.pulls[1].queued
    calls = world.site.double.calls
    queued = calls.number("graphql/enqueuePullRequest")
    assert state_of(record, world.live.now(), PACE) == "queued"
    world.pass_time(PACE.queued.total_seconds())
    assert state_of(record, world.live.now(), PACE) == "stuck"
    await world.poll(2)
    assert calls.number("graphql/enqueuePullRequest") == queued + 1
    world.site.double.finish_queue(world.site.shop, 1)  # type: ignore[attr-defined]  # of GitHub's double
    await world.poll()
    await world.published("branch.merged", 1)


async def test_conflict_is_published_with_its_files_and_followed_by_one_task(world: World) -> None:
    """The task continues the branch; a spawner that was killed in between submits no second one."""
    KilledWorkflow.killed = set()
    await world.branch(PullRequestOptions(open="ready", merge="when_permitted", follow_up=True))
    await world.run()
    world.site.shop.git.commit("main", {"sum.py": "total = 3\n"}, "other")
    for _ in range(4):
        await run_killed(world)
        world.pass_time()
    [conflict] = await world.published("branch.conflicted", 1)
    assert (conflict["files"], conflict["base"]) == (["sum.py"], "main")
    assert {"conflicted", "followed_up"} <= KilledWorkflow.killed
    [command] = world.submitted
    repository = command.data.spec.repository
    assert repository is not None
    assert (repository.branch, command.data.spec.text.splitlines()[0]) == (
        "feature/sum", "Resolve the conflicts of branch feature/sum with its base main",
    )  # fmt: skip
    assert (await world.record()).pull.follow_ups == (command.data.task,)  # type: ignore[union-attr]
    assert world.site.double.calls.number("pulls/merge") == 0


async def test_ticket_that_is_no_issue_closes_none(world: World) -> None:
    """An issue that exists is closed by the merge; any other ticket closes none."""
    issue = world.site.open_issue()
    await world.branch(READY, ticket=f"#{issue}")
    await world.run()
    [pull] = world.site.shop.pulls.values()
    assert f"Closes #{issue}" in (pull.body or "")
    assert "sandherd tasks get task-1" in (pull.body or "")
    await world.change(lambda record: record.model_copy(update={"ticket": "#999"}))
    await world.request_open()
    await world.run()
    assert "Closes" not in (pull.body or "")


async def test_refusal_is_published_once_and_repeated_at_request_only(world: World) -> None:
    """A refusal, as of a repository that the token no longer sees, is repeated only on request."""
    await world.branch(READY)
    world.site.double.refuse(
        "pulls/create", Reply(403, {"message": "Resource not accessible", "documentation_url": ""})
    )
    record = await world.run()
    assert record.view().pull_request_problem
    await world.poll()
    [refused] = await world.published("branch.pull_request_refused", 1)
    assert (refused["step"], refused["code"]) == ("open_pull_request", "denied")
    await world.request_open(ready=True)
    record = await world.run()
    assert record.view().pull_request_problem is None
    assert list(world.site.shop.pulls) == [1]


async def test_branch_that_is_deleted_at_the_forge_is_refused_after_some_minutes(world: World) -> None:
    """The forge may see a push late, so the creation is retried before it is refused."""
    await world.branch(READY)
    await world.mirrors.with_branch(await world.record())
    world.site.shop.git.run("update-ref", "-d", "refs/heads/feature/sum")
    with pytest.raises(ForgeError):
        await world.run()
    world.pass_time()
    await world.run()
    [refused] = await world.published("branch.pull_request_refused", 1)
    assert (refused["step"], refused["code"]) == ("open_pull_request", "not_found")


async def test_closed_pull_request_is_not_opened_again_by_itself(world: World) -> None:
    """The pull request stays closed by the user's decision, also after new commits; a request opens it again."""
    await world.branch(MERGED)
    await world.run()
    world.site.shop.pulls[1].state = "closed"
    await world.poll()
    await world.published("branch.pull_request_closed", 1)
    await world.continued({"more.py": "1\n"})
    await world.poll()
    assert list(world.site.shop.pulls) == [1]
    await world.request_open()
    await world.poll()
    assert list(world.site.shop.pulls) == [1, 2]


async def test_known_pull_request_is_read_before_another_one_is_opened(world: World) -> None:
    """A retargeted pull request is updated by the next commit; after one that a user closed no other one follows."""
    await world.branch(READY)
    await world.run()
    pulls = world.site.shop.pulls
    world.site.shop.git.commit("develop", {"d.txt": "1\n"}, "develop", base="main")
    pulls[1].base = "develop"
    await world.continued({"more.py": "1\n"})
    record = await world.run()
    assert ("more.py" in (pulls[1].body or ""), shown(record).base) == (True, "develop")
    pulls[1].state = "closed"
    await world.continued({"last.py": "1\n"})
    await world.poll()
    assert list(pulls) == [1]


async def test_later_commits_update_it_and_merge_with_newer_ones_loses_none(world: World) -> None:
    """If a user merged it before the last commits were pushed, another one is opened for these."""
    await world.branch(READY)
    await world.run()
    await world.continued({"more.py": "1\n"})
    await world.run()
    assert "more.py" in (world.site.shop.pulls[1].body or "")
    await world.poll()
    double = world.site.double
    double._merge(world.site.shop, world.site.shop.pulls[1], "merge")  # type: ignore[attr-defined]  # as a user does
    await world.continued({"last.py": "1\n"})
    record = await world.poll()
    assert record.state is BranchState.LIVE
    assert list(world.site.shop.pulls) == [1, 2]


async def test_what_users_wrote_of_it_stays(world: World) -> None:
    """Only the spawner's part of the body is updated, and a title or part that users changed stays."""
    await world.branch(READY)
    await world.run()
    pull = world.site.shop.pulls[1]
    pull.title, pull.body = "Mine", f"Before.\r\n{(pull.body or '').replace(chr(10), chr(13) + chr(10))}\r\nAfter."
    await world.continued({"more.py": "1\n"})
    await world.run()
    assert pull.title == "Mine"
    assert pull.body.startswith("Before.\n")
    assert pull.body.endswith("\nAfter.")
    assert "more.py" in pull.body
    pull.body = pull.body.replace("No checks.", "Checked by hand.")
    edited = pull.body
    await world.continued({"last.py": "1\n"})
    await world.run()
    assert pull.body == edited


async def test_unknown_mergeability_means_wait(world: World) -> None:
    """While GitHub reports null nothing is merged, and no event is published for that."""
    world.site.double.unknown_gets = 5  # type: ignore[attr-defined]  # of GitHub's double
    await world.branch(MERGED)
    await world.run()
    record = await world.poll(3)
    assert shown(record).mergeable == "unknown"
    assert not world.site.shop.pulls[1].merged
    await world.published("branch.pull_request_updated", 0)
    await world.poll(4)
    assert world.site.shop.pulls[1].merged


async def test_rate_limit_is_respected_and_shown(world: World) -> None:
    """While GitHub requires a delay no request is sent; nothing is refused."""
    await world.branch(READY)
    world.site.double.refuse("pulls/create", secondary_limit(60))
    with pytest.raises(ForgeError):
        await world.run()
    sent = world.site.double.calls.number()
    with pytest.raises(ForgeError, match="rate limit"):
        await world.run()
    assert world.site.double.calls.number() == sent
    [limit] = world.forges.rate_limits().values()
    assert (limit.blocked_until is not None, (limit.remaining or 0) > 0) == (True, True)
    assert (await world.record()).pull is None


async def test_step_in_which_the_lease_is_lost_is_repeated_once_it_is_acquired_again(world: World) -> None:
    """The same replica repeats it: without a change of the record it would not be due."""
    lease = Held(world.bus, "test.pulls", "test")
    flow = PullRequestWorkflow(
        world.live, lease, world.mirrors, world.forges, terms=world.terms, submit=world.submit, ids=world.bus.ids,
        pace=PACE,
    )  # fmt: skip
    poll, lost = flow._forge.poll, asyncio.Event()

    async def without_lease(record: BranchRecord) -> Decide:
        if lost.is_set():
            return await poll(record)
        lost.set()
        raise LeaseLostError("test.pulls")

    async def written() -> bool:
        record = await world.record()
        return record.pull is not None and not record.outbox

    flow._forge.poll = without_lease  # type: ignore[method-assign]
    await world.branch(MERGED)
    running = asyncio.create_task(flow.run())
    try:
        await eventually(written)
        await world.live.catch_up()
        world.pass_time()
        async with asyncio.timeout(PATIENCE):
            await lost.wait()
        lease.fence += 1
        await eventually(lambda: world.site.double.calls.number("pulls/get"))
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
