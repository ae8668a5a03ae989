"""The task that resolves the conflicts of a branch with its base. Pure."""

from datetime import datetime
from typing import Final

from sandherd.contracts.commands import SubmitTask, TaskSpec
from sandherd.contracts.envelope import Envelope, wrap
from sandherd.contracts.names import DerivedIds
from sandherd.contracts.repositories import Repository
from spawner.pull_requests.pull_request_steps import target_of
from spawner.repositories.branch_record import BranchRecord
from spawner.tasks.task_record import TaskRecord

_MAX_PATHS: Final = 20
"""Maximum paths that the task's text lists."""
SUBMITTED_BY: Final = "branch workflow"
"""The submitter in the records of these tasks."""


def follow_up_problem(record: BranchRecord, task: TaskRecord | None) -> str | None:
    """Why no task that resolves conflicts can be submitted, or None. `task`: the record of the branch's last task."""
    if target_of(record) != record.base:
        return f"the base of its pull request was changed to {target_of(record)}, which its sandboxes do not have"
    if task is None:
        return "the record of its last task was removed"
    if task.spec.secret_env or task.erased:
        return "secrets that its last task was submitted with are erased; use named secrets (`sandherd run --secret`)"
    return None


def follow_up_name(ids: DerivedIds, record: BranchRecord, at: datetime, commit: str) -> str:
    """The name of the task that resolves the conflicts of a commit. `at`: when the conflicts were published.

    Equal arguments give the same name.
    """
    return f"task-{ids.derive(at, record.key, record.life, commit).hex}"


def follow_up(
    ids: DerivedIds, record: BranchRecord, last: TaskRecord, at: datetime, commit: str
) -> Envelope[SubmitTask]:
    """The command that submits the task. Equal arguments give the same command, with the same id."""
    name = follow_up_name(ids, record, at, commit)
    return wrap(
        SubmitTask(task=name, spec=follow_up_spec(record, last.spec), submitted_by=SUBMITTED_BY),
        SubmitTask.type,
        source=f"/sandherd/spawner/{record.id}/{name}",
        sequence=1,
        project=record.project,
        subject=name,
        time=at,
        id=ids.derive(at, record.key, record.life, commit, "command"),
    )


def follow_up_spec(record: BranchRecord, last: TaskSpec) -> TaskSpec:
    """The spec of the task: a copy of the last task's spec, for the same branch, with another text."""
    last_repository = last.repository
    inherited = last_repository.model_dump(include={"commit_rest", "submodules", "lfs"}) if last_repository else {}
    repository = Repository(
        url=record.url, base=record.base, branch=record.branch, ticket=record.ticket, push=record.push,
        pull_request=record.pull_options, **inherited,
    )  # fmt: skip
    changes = {
        "text": text_of(record), "repository": repository, "depends_on": (), "inputs": (), "deadline": None,
        "resume": None, "work": None, "files": {},
    }  # fmt: skip
    return TaskSpec.model_validate(last.model_copy(update=changes).model_dump())


def text_of(record: BranchRecord) -> str:
    """The text of the task. Paths are quoted, because the repository chooses them."""
    paths = record.pull.conflicts if record.pull else ()
    lines = "\n".join(f"- {path!r}" for path in paths[:_MAX_PATHS])
    base = f"origin/{record.base}"
    return (
        f"Resolve the conflicts of branch {record.branch} with its base {record.base}\n\n"
        f"Merge {base} into the branch that is checked out (`git merge {base}`), resolve all conflicts so that what "
        f"both sides intend is preserved, run the tests, and commit the merge.\n\nConflicts are in:\n{lines}\n"
    )
