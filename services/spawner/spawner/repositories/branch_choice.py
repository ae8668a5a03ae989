"""Chooses the branch that a task works on, and decides whether the task can begin. Pure."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from pydantic import TypeAdapter, ValidationError

from sandherd.contracts.repositories import BranchName, Repository
from sandherd.contracts.states import BranchState, TaskState
from spawner.repositories.branch_names import Rules, branch_name, prefix_of
from spawner.repositories.branch_record import BranchRecord
from spawner.repositories.git import GitError, GitFault
from spawner.tasks.task_record import TaskFacts, TaskRecord
from spawner.tasks.task_secrets import hidden

MAX_CHECKOUT_AGE: Final = timedelta(hours=12)
"""The time that a checkout, which is stored as an artifact, may wait for its sandbox."""
WORKING_STATES: Final = frozenset({TaskState.ASSIGNED, TaskState.RUNNING})
"""The states in which a task works on its branch."""


def branch_to_continue(
    task: TaskRecord, repository: Repository, branches: Iterable[BranchRecord]
) -> BranchRecord | None:
    """The branch that a task continues, or that was created for it before a crash; None if it needs a new branch.

    `branches`: those of the repository in the project. Raises `GitError` if the task names a branch that is not live.
    """
    records = list(branches)
    live = [record for record in records if record.state is BranchState.LIVE]
    for record in live:
        if record.life == task.life or record.branch == repository.branch:  # the life is that of the branch's creator
            return record
    if repository.branch is not None:
        raise GitError(GitFault.NOT_FOUND, _not_live_reason(repository.branch, records))
    if repository.join:
        of_ticket = [record for record in live if _is_same_ticket(record.ticket, repository.ticket)]
        return max(of_ticket, key=lambda record: record.updated_at, default=None)
    return None


def _not_live_reason(branch: str, branches: Iterable[BranchRecord]) -> str:
    """The reason why a branch that is not live can't be continued."""
    last = max((one for one in branches if one.branch == branch), key=lambda one: one.updated_at, default=None)
    if last is None:
        return f"{branch} is not a live branch of an earlier task"
    at_forge = last.pull.shown if last.pull else None
    merged = last.state is BranchState.MERGED or (at_forge is not None and at_forge.state == "merged")
    return f"{branch} was {'merged' if merged else 'deleted'}: begin a new branch, without naming one"


def _is_same_ticket(one: str | None, other: str | None) -> bool:
    """Whether two references name the same ticket, as `#42` and `42` do."""
    return one is not None and other is not None and one.removeprefix("#") == other.removeprefix("#")


def new_branch_name(task: TaskRecord, repository: Repository, taken: Iterable[str], rules: Rules) -> str:
    """The name of a new branch for a task. It is not in `taken`, and contains no value of the task's secrets.

    The name must not contain secrets, because it is stored longer than these, published in events, and pushed.
    """
    text: str = hidden(task.spec.text, task.spec)
    title = next((line.strip() for line in text.splitlines() if line.strip()), "")
    prefix = prefix_of(title, task.spec.priority, rules)
    return branch_name(title, prefix=prefix, task=task.task, ticket=repository.ticket, taken=taken)


def base_problem(base: str) -> str | None:
    """Why a branch with this name can't be the base of a task, or None. Git permits names that are not valid here."""
    try:
        TypeAdapter(BranchName).validate_python(base)
    except ValidationError:
        return f"the name of branch {base[:100]!r} has characters that a task's base may not have; name another base"
    return None


def is_fresh(task: TaskRecord, now: datetime) -> bool:
    """Whether the task's checkout was stored recently enough to be available when its sandbox starts."""
    return task.prepared_at is not None and now - task.prepared_at < MAX_CHECKOUT_AGE


def other_task_at_work(branch: BranchRecord, task: str, find_task: Callable[[str], TaskFacts | None]) -> str | None:
    """Another task that works on the branch now, or None. Two tasks at once would not have each other's commits.

    A task that has ended is included until its sandbox has ended and the sandbox's last events are handled.
    """
    others = (find_task(f"{branch.project}.{name}") for name in branch.tasks if name != task)
    return next((one.task for one in others if one is not None and (one.state in WORKING_STATES or one.saves)), None)


def is_current(task: TaskRecord, branch: BranchRecord | None, *, mounted: bool) -> bool:
    """Whether the task's checkout has all commits of its branch, in the form that its runtime needs.

    `mounted`: the runtime mounts the mirror; any other runtime needs a bundle.
    """
    if branch is None or task.checkout is None or (task.checkout.bundle is None) != mounted:
        return False
    return branch.commit == task.checkout.commit and not branch.received
