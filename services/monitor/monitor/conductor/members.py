"""A sandbox as the Conductor compares it with others: a part of its summary, and the context of its task.

Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from monitor.conductor.ignored_files import IgnoredFiles, is_plain, is_short
from monitor.conductor.similarity import TaskTitle, title_of
from monitor.facts import Key
from sandherd.contracts.records import Edit, SandboxSummary

_ACTIVE_STATES: Final = frozenset({"running", "waiting"})
Group = tuple[str, str | None, str | None]
"""The project, the repository and the base of a sandbox; without a repository the last two are None."""


@dataclass(frozen=True, slots=True)
class TaskContext:
    """The parts of a submitted task's specification that the Conductor uses."""

    batch: str | None = None
    """The batch that it was submitted in. The tasks of a batch are similar on purpose."""
    builds_on: frozenset[str] = frozenset()
    """The tasks that it depends on, and the task whose session it resumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectMember:
    """A sandbox with a task. `edits` has the compared files by path."""

    project: str
    sandbox: str
    task: str
    repository: str | None
    base: str | None
    branch: str | None
    title: TaskTitle
    started_at: datetime
    live: bool
    """Whether its agent works, waits or is paused. A finished agent can still get a message, and then edit files
    again."""
    active: bool
    """Whether the agent works or waits, so that it may receive a message."""
    edits: Mapping[str, Edit]
    context: TaskContext = TaskContext()

    @property
    def key(self) -> Key:
        """The project and the name of the sandbox."""
        return self.project, self.sandbox

    @property
    def group(self) -> Group:
        """The group of members that it is compared with."""
        return self.project, self.repository, self.base

    @property
    def order(self) -> tuple[datetime, str]:
        """Sorts sandboxes by their beginning, because evidence is about the later sandbox of a pair."""
        return self.started_at, self.sandbox


def member_of(summary: SandboxSummary, context: TaskContext, ignored: IgnoredFiles) -> ProjectMember | None:
    """The member of a summary; None if it runs no task or has ended."""
    if summary.task is None or summary.state == "ended":
        return None
    names = (summary.repository, summary.base, summary.branch)
    are_comparable = all(name is None or is_short(name) for name in names)
    repository = repository_key(summary.repository) if are_comparable else None
    return ProjectMember(
        project=summary.project,
        sandbox=summary.sandbox,
        task=summary.task,
        repository=repository,
        base=summary.base if repository else None,
        branch=summary.branch if repository else None,
        title=title_of(summary.title),
        started_at=summary.started_at,
        live=summary.state != "finished",
        active=summary.state in _ACTIVE_STATES,
        edits={edit.path: edit for edit in summary.edits if is_plain(edit.path) and edit.path not in ignored},
        context=context,
    )


def repository_key(repository: str | None) -> str | None:
    """The common name of a repository: its name in the spawner's events, without `.git`."""
    return repository.removesuffix("/").removesuffix(".git") if repository else None


def are_similar_on_purpose(member: ProjectMember, other: ProjectMember) -> bool:
    """Whether two tasks are similar on purpose: equal, of one branch or batch, or one builds on the other."""
    same_branch = member.branch is not None and (member.repository, member.branch) == (other.repository, other.branch)
    same_batch = member.context.batch is not None and member.context.batch == other.context.batch
    is_dependency = member.task in other.context.builds_on or other.task in member.context.builds_on
    return member.task == other.task or same_branch or same_batch or is_dependency


def are_alternatives(member: ProjectMember, other: ProjectMember) -> bool:
    """Whether two tasks are the same on purpose, as in a matrix.

    Only one of their results is used, so they don't conflict.
    """
    return member.task == other.task or (
        member.context.batch is not None and member.context.batch == other.context.batch and member.title == other.title
    )
