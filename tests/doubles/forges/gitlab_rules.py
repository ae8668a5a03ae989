"""Decisions of GitLab about a merge request."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.doubles.forges.forge_state import Account, Check, Pull, Repository
from tests.doubles.forges.merges import merge
from tests.doubles.forges.pull_states import mergeable

if TYPE_CHECKING:
    from tests.doubles.forges.gitlab import GitLab


@dataclass
class ProjectSettings:
    """The requirements of a project for merge requests."""

    pipeline: bool = False
    """Whether the pipeline must have succeeded."""
    approvals: int = 0
    cannot_merge: set[str] = field(default_factory=set)
    """Logins without the permission to merge."""


def pipeline_of(project: Repository, pull: Pull) -> Check | None:
    """The latest pipeline of the head."""
    every = [one for one in project.checks if one.commit == pull.head_sha and not one.is_status]
    return every[-1] if every else None


def status_of(project: Repository, pull: Pull, settings: ProjectSettings) -> str:
    """The `detailed_merge_status`."""
    if pull.state != "open":
        return "not_open"
    if pull.unknown_gets:
        return "checking"
    if pull.draft or not mergeable(project, pull):
        return "draft_status" if pull.draft else "conflict"
    if len(pull.reviews) < settings.approvals:
        return "not_approved"
    pipeline = pipeline_of(project, pull)
    if settings.pipeline and (pipeline is None or pipeline.conclusion != "success"):
        return "ci_still_running" if pipeline and pipeline.conclusion is None else "ci_must_pass"
    return "mergeable"


def merge_now(
    gitlab: "GitLab", project: Repository, pull: Pull, account: Account, *, squash: bool = False, remove: bool = False
) -> None:
    """Merge it in git, always with a merge commit; squashed if requested."""
    message = f"Merge branch '{pull.head}' into '{pull.base}'"
    head = pull.head_sha
    if squash:
        base = project.git.run("merge-base", pull.base_sha, head)
        head = project.git.write(project.git.show(head).tree, [base], pull.title)
    made = merge(project.git, pull.base_sha, head, "merge", message)
    assert made is not None, "a conflict is found before"
    project.git.move(pull.base, made, pull.base_sha)
    pull.state, pull.merge_commit, pull.merged_by, pull.queued = "closed", made, account, False
    pull.merged = pull.closed = pull.updated = gitlab.clock.now()
    if remove:
        project.git.delete(f"refs/heads/{pull.head}")
