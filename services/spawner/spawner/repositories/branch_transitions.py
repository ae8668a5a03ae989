"""State changes of a branch, as pure functions from a record and a fact to the next record.

Most functions are named for the state that they return: `pushed(record, ...)` returns the record of a pushed branch.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Final

from sandherd.contracts.events import ArtifactRef
from sandherd.contracts.events.branch import (
    MAX_PATHS,
    BranchCreated,
    BranchDeleted,
    BranchOverlap,
    BranchOverlapFound,
    BranchPushed,
    BranchPushRefused,
    BranchRefused,
    BranchSaved,
)
from sandherd.contracts.repositories import Repository
from sandherd.contracts.requests import DeleteBranch, PushBranch
from sandherd.contracts.states import BranchState
from spawner.repositories.branch_record import (
    BranchRecord,
    BranchSize,
    ReceivedCommits,
    SignedCommits,
    branch_id,
    repository_key,
)
from spawner.repositories.git import GitFault
from spawner.tasks.task_record import TaskRecord

Decide = Callable[[BranchRecord], BranchRecord]
"""A change of a branch: returns the next record for the present one."""
MAX_TASKS: Final = 100
"""Maximum tasks in the record of a branch. The first ones are removed."""
DONE: Final = "done"
"""The value of the metrics' attribute `outcome` for a step that succeeded."""
_NOT_YET: Final = "not done yet, and tried again: "
"""The prefix of the problem of a branch whose step is retried."""
_NOT_PUSHED: Final = "not pushed: "
"""The prefix of the problem of a branch whose push was refused, until it has other commits or is pushed."""
NEEDS_APPROVAL: Final = "needs_approval"
"""The code of a push refusal that lasts until a user approves changed paths."""
MAX_RECEIVED: Final = 16
"""Maximum bundles of one branch that wait to be checked. A save contains the commits of the sandbox's earlier saves."""


def outcome_of(fault: GitFault) -> str:
    """The value of the metrics' attribute `outcome` for a step that failed. Each value has another remedy."""
    return fault.value if fault in {GitFault.DENIED, GitFault.UNAVAILABLE} else GitFault.REFUSED.value


def created(
    task: TaskRecord, repository: Repository, *, branch: str, base: str, commit: str, at: datetime
) -> BranchRecord:
    """A new branch for a task."""
    name = repository_key(repository)
    record = BranchRecord(
        project=task.project,
        traceparent=task.traceparent,
        id=branch_id(name, branch),
        life=task.life,
        tasks=(task.task,),
        repository=name,
        url=repository.url,
        origin=repository.bundle,
        branch=branch,
        base=base,
        base_commit=commit,
        commit=commit,
        ticket=repository.ticket,
        push=repository.push and repository.url is not None,
        pull_options=repository.pull_request,
        created_at=at,
        updated_at=at,
    )
    event = BranchCreated(repository=name, branch=branch, base=base, base_commit=commit, ticket=repository.ticket)
    return record.with_events(at, event)


def joined_by(record: BranchRecord, task: TaskRecord, now: datetime) -> BranchRecord:
    """The branch with a task that is to work on it, and with that task's options for the pull request.

    Unchanged if the branch is no longer live.
    """
    if record.state is not BranchState.LIVE:
        return record
    options = task.repository.pull_request if task.repository else None
    if options is not None and options != record.pull_options:
        record = record.model_copy(update={"pull_options": options, "updated_at": now})
    return joined(record, task.task, now)


def joined(record: BranchRecord, task: str, now: datetime) -> BranchRecord:
    """The branch with this task as its last task; unchanged if it is the last one already."""
    if task == record.name:
        return record
    tasks = (*(name for name in record.tasks if name != task), task)[-MAX_TASKS:]
    return record.model_copy(update={"tasks": tasks, "updated_at": now})


def begun_by(record: BranchRecord, task: TaskRecord, now: datetime) -> BranchRecord:
    """The branch when this task begins to work on it: the task decides whether saved commits are pushed."""
    push = task.repository is not None and task.repository.push and record.url is not None
    return record if record.push == push else record.model_copy(update={"push": push, "updated_at": now})


def received(record: BranchRecord, commits: ReceivedCommits, now: datetime) -> BranchRecord:
    """The branch with a bundle to be checked; unchanged if the bundle was received before.

    If the branch is not live, the bundle is refused.
    """
    is_waiting = any(one.bundle.artifact == commits.bundle.artifact for one in record.received)
    if is_waiting or record.bundle == commits.bundle:
        return record
    if record.state is not BranchState.LIVE:
        return _too_late(record, commits, record.state, now)
    replaced = () if commits.partial else [one for one in record.received if _replaces(commits, one)]
    waiting = (*(one for one in record.received if one not in replaced), commits)[-MAX_RECEIVED:]
    return record.model_copy(update={"received": waiting, "updated_at": now})


def _replaces(later: ReceivedCommits, earlier: ReceivedCommits) -> bool:
    """Whether the later save contains the commits of the earlier bundle.

    That is so for saves of the same sandbox. A push is never replaced, because its sandbox waits for its result.
    """
    return earlier.sandbox == later.sandbox and not earlier.partial


def saved(
    record: BranchRecord,
    commits: ReceivedCommits,
    *,
    size: BranchSize,
    paths: list[str],
    diff: ArtifactRef | None,
    now: datetime,
    signed: SignedCommits | None = None,
    with_objects: bool = False,
) -> BranchRecord:
    """The branch after a bundle was added to it. `signed`: the commit and bundle that replace those of the sandbox.

    `with_objects`: the bundle has objects of Git LFS.
    """
    if commits not in record.received:
        return record
    commit, bundle = (signed.commit, signed.bundle) if signed else (commits.commit, commits.bundle)
    changes = {
        "commit": commit,
        "unsigned": commits.commit if commit != commits.commit else None,
        "bundle": bundle,
        "objects_in": _with_objects(record, commits) if with_objects else record.objects_in,
        "size": size,
        "diff": diff,
        "problem": None,
        "push_wanted": (record.push or record.push_wanted) and record.pushed != commit,
        "approve": (),
    }
    event = BranchSaved(
        repository=record.repository,
        branch=record.branch,
        commit=commit,
        paths=paths[:MAX_PATHS],
        diff=diff,
        **size.model_dump(),
    )
    return _without(joined(record, commits.task, now), commits, now).model_copy(update=changes).with_events(now, event)


def _with_objects(record: BranchRecord, commits: ReceivedCommits) -> tuple[ReceivedCommits, ...]:
    """The bundles with objects of Git LFS, including this one, which replaces that of the same sandbox."""
    others = (one for one in record.objects_in if one.sandbox != commits.sandbox)
    return (*others, commits)[-MAX_RECEIVED:]


def merged_on_trial(
    record: BranchRecord, commit: str, overlaps: tuple[BranchOverlap, ...], now: datetime
) -> BranchRecord:
    """The branch after trial merges of this commit; unchanged if the branch has another commit by now."""
    if record.commit != commit:
        return record
    tried = record.model_copy(update={"merged_on_trial": commit, "overlaps": overlaps})
    if overlaps == record.overlaps:
        return tried
    event = BranchOverlapFound(
        repository=record.repository, branch=record.branch, commit=commit, overlaps=list(overlaps)
    )
    return tried.with_events(now, event)


def refused(record: BranchRecord, commits: ReceivedCommits, reason: str, now: datetime) -> BranchRecord:
    """The branch after a bundle was refused. The branch's commits do not change."""
    if commits not in record.received:
        return record
    event = BranchRefused(repository=record.repository, branch=record.branch, reason=reason)
    without = _without(record, commits, now).model_copy(update={"problem": f"commits refused: {reason}"})
    return without.with_events(now, event)


def delayed(record: BranchRecord, reason: str, now: datetime) -> BranchRecord:
    """The branch with the reason why its step is retried; unchanged if only trial merges are due."""
    problem = f"{_NOT_YET}{reason}"
    has_requested_step = bool(record.received or record.push_wanted or record.delete_wanted)
    return (
        record.model_copy(update={"problem": problem, "updated_at": now})
        if has_requested_step and record.problem != problem
        else record
    )


def unchanged(
    record: BranchRecord, commits: ReceivedCommits, now: datetime, *, with_objects: bool = False
) -> BranchRecord:
    """The branch after a bundle that adds no commit to it.

    `with_objects`: the bundle has objects of Git LFS. Without these a push of the commits may have been refused, so it
    is requested again.
    """
    without = _without(record, commits, now)
    if not with_objects or commits not in record.received:
        return without
    changes = {"objects_in": _with_objects(record, commits), "push_wanted": record.push or record.push_wanted}
    return without.model_copy(update=changes)


def push_requested(record: BranchRecord, request: PushBranch, now: datetime) -> BranchRecord:
    """The branch with a requested push, and with the approval in the request; unchanged if it may not be pushed."""
    if not may_be_pushed(record, request):
        return record
    wanted = record.model_copy(update={"push_wanted": True, "updated_at": now})
    if request.approved_commit is None:
        return wanted
    pull = record.pull
    if pull is not None:  # a merge may have been refused for lack of this approval
        pull = pull.changed(refused={step: at for step, at in pull.refused.items() if step != "merge"}, problem=None)
    approved_before = record.approved_paths if record.approved == request.approved_commit else ()
    paths = tuple(sorted({*approved_before, *record.approve}))
    approval = {"approved": request.approved_commit, "approved_paths": paths}
    return wanted.model_copy(update={**approval, "pull": pull})


def may_be_pushed(record: BranchRecord, request: PushBranch) -> bool:
    """Whether the request approves no commit, or the branch's present commit. Another commit may change other paths."""
    return request.approved_commit in (None, record.commit)


def push_begun(record: BranchRecord, commit: str, now: datetime) -> BranchRecord:
    """The branch when its first push begins, which pushes this commit."""
    if record.commit != commit or record.pushed is not None:
        return record
    tried_before = (*record.tried_before, *([record.tried] if record.tried else []))[-MAX_RECEIVED:]
    return record.model_copy(update={"tried": commit, "tried_before": tried_before, "updated_at": now})


def renamed(record: BranchRecord, branch: str, now: datetime) -> BranchRecord:
    """The branch with another name for the repository; unchanged if it was pushed already."""
    if record.pushed is not None:
        return record
    return record.model_copy(update={"pushed_as": branch, "tried": None, "tried_before": (), "updated_at": now})


def pushed(record: BranchRecord, commit: str, now: datetime) -> BranchRecord:
    """The branch after its commit `commit` was pushed. The push stays requested if the branch has a later commit."""
    if record.pushed == commit and not record.push_wanted:
        return record
    event = BranchPushed(
        repository=record.repository, branch=record.branch, commit=commit, pushed_branch=record.pushed_as
    )
    is_complete = record.commit == commit
    changes = {
        "pushed": commit,
        "tried": None,
        "tried_before": (),
        "push_wanted": not is_complete,
        "objects_in": () if is_complete else record.objects_in,
        "problem": None,
        "approve": (),
        "updated_at": now,
    }
    return record.model_copy(update=changes).with_events(now, event)


def push_refused(
    record: BranchRecord, reason: str, code: str, now: datetime, paths: tuple[str, ...] = ()
) -> BranchRecord:
    """The branch after its push was refused. It is not retried until a user requests it or commits are saved."""
    event = BranchPushRefused(
        repository=record.repository,
        branch=record.branch,
        commit=record.commit,
        reason=reason,
        code=code,
        paths=list(paths[:MAX_PATHS]),
    )
    changes = {
        "push_wanted": False,
        "problem": f"{_NOT_PUSHED}{reason}",
        "approve": paths[:MAX_PATHS],
        "updated_at": now,
    }
    return record.model_copy(update=changes).with_events(now, event)


def moved_remotely(record: BranchRecord, remote_commit: str, now: datetime) -> BranchRecord:
    """The branch after a user moved its remote branch. The push is refused, so that no commit is overwritten."""
    name, pushed = record.branch, (record.pushed or "")[:12]
    reason = (
        f"the repository's {record.remote_branch} is at {remote_commit[:12]}, which Sandherd did not push; "
        f"Sandherd overwrites no commits of others. Fetch the herd's commits (`sandherd branches fetch {name}`), and "
        f"join both by hand, or move the repository's branch back to {pushed}, or rename it, and push again "
        f"(`sandherd branches push {name}`)"
    )
    return push_refused(record, reason, GitFault.CONFLICT.value, now)


def deleted_remotely(record: BranchRecord, pushed: str, now: datetime, *, merged: bool) -> BranchRecord:
    """The branch after its remote branch, last at `pushed`, was deleted; unchanged if `record.pushed` differs by now.

    The branch is pushed again if its pushed commits are in the base (`merged`), or if its pull request is merged, or
    open as of the last poll, because forges delete merged branches. It is also pushed again if a user has requested
    this push, which is the case if the last push was refused, or if there is no new commit. Otherwise it is refused.
    """
    if record.pushed != pushed:
        return record
    not_pushed = record.model_copy(update={"pushed": None, "tried": None, "tried_before": (), "updated_at": now})
    at_forge = record.pull.shown if record.pull else None
    requested = record.commit == pushed or (record.problem or "").startswith(_NOT_PUSHED)
    if merged or requested or (at_forge is not None and at_forge.state != "closed"):
        return not_pushed
    reason = f"the repository's {record.remote_branch} was deleted; `sandherd branches push {record.branch}` creates it"
    return push_refused(not_pushed, reason, GitFault.CONFLICT.value, now)


def needs_approval(record: BranchRecord, paths: tuple[str, ...], now: datetime) -> BranchRecord:
    """The branch after its push was refused until a user approves its changes of these paths."""
    return push_refused(record, "it changes paths that a user has to approve", NEEDS_APPROVAL, now, paths)


def delete_requested(record: BranchRecord, request: DeleteBranch, now: datetime) -> BranchRecord:
    """The branch with a requested deletion; unchanged if it is deleted already."""
    if record.state is BranchState.DELETED:
        return record
    return record.model_copy(update={"delete_wanted": request.where, "push_wanted": False, "updated_at": now})


def deleted(record: BranchRecord, now: datetime) -> BranchRecord:
    """The branch after it was deleted."""
    if record.state is BranchState.DELETED:
        return record
    problem = None if (record.problem or "").startswith(_NOT_YET) else record.problem
    changes: dict[str, object] = {"delete_wanted": None, "push_wanted": False, "received": (), "approve": ()}
    changes |= {"objects_in": (), "problem": problem, "updated_at": now}
    event = BranchDeleted(repository=record.repository, branch=record.branch)
    ended = record.entering(BranchState.DELETED, **changes).with_events(now, event)
    for commits in record.received:
        ended = _too_late(ended, commits, BranchState.DELETED, now)
    return ended


def not_deleted(record: BranchRecord, reason: str, now: datetime) -> BranchRecord:
    """The branch after its deletion was refused."""
    return record.model_copy(update={"delete_wanted": None, "problem": f"not deleted: {reason}", "updated_at": now})


def _too_late(record: BranchRecord, commits: ReceivedCommits, state: BranchState, now: datetime) -> BranchRecord:
    """The branch after it refused a bundle because it is not live; unchanged if it has the same problem already."""
    reason = f"{commits.commit[:12]} was saved by {commits.sandbox}, but the branch is {state}"
    problem = f"commits refused: {reason}"
    if record.problem == problem:
        return record
    event = BranchRefused(repository=record.repository, branch=record.branch, reason=reason)
    return record.model_copy(update={"problem": problem, "updated_at": now}).with_events(now, event)


def _without(record: BranchRecord, commits: ReceivedCommits, now: datetime) -> BranchRecord:
    """The branch without a handled bundle, and without the problem that its step was retried."""
    remaining = tuple(one for one in record.received if one != commits)
    problem = None if (record.problem or "").startswith(_NOT_YET) else record.problem
    return record.model_copy(update={"received": remaining, "problem": problem, "updated_at": now})
