"""Summaries and scopes for the tests of the Conductor's decisions."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from monitor.conductor.branch_facts import Branches
from monitor.conductor.evidence import ProjectData
from monitor.conductor.herd_index import HerdIndex
from monitor.conductor.ignored_files import IgnoredFiles
from monitor.conductor.members import ProjectMember, TaskContext, member_of
from sandherd.contracts.records import Edit, SandboxSummary

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
PROJECT = "demo"
NO_CONTEXT = TaskContext()
REPOSITORY = "https://git.example.org/demo/shop"


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def edit(path: str, *ranges: tuple[int, int], seconds: float = 100, digest: str | None = None) -> Edit:
    return Edit(path=path, ranges=ranges, at=at(seconds), content_sha256=digest)


def summary(sandbox: str, *edits: Edit, began: float = 0, **fields: Any) -> SandboxSummary:
    number = sandbox.rpartition("-")[2]
    known = {"task": f"task-{number}", "repository": REPOSITORY, "base": "main", "branch": f"feature/{number}"}
    times = {"started_at": at(began), "updated_at": at(began + 1), "sequence": 1}
    return SandboxSummary(project=PROJECT, sandbox=sandbox, edits=edits, **{**known, **times, **fields})


class World:
    """A scope that summaries are put into, one after the other."""

    def __init__(self, ignored: Iterable[str] = ()) -> None:
        self.scope = ProjectData(PROJECT, HerdIndex(), Branches())
        self.ignored = IgnoredFiles(ignored)

    def put(self, found: SandboxSummary, context: TaskContext = NO_CONTEXT) -> set[str]:
        """Put a summary into the scope. Returns the affected sandboxes."""
        member = member_of(found, context, self.ignored)
        return {name for _project, name in self.scope.index.replace((found.project, found.sandbox), member)}

    def remove(self, sandbox: str) -> set[str]:
        return {name for _project, name in self.scope.index.replace((PROJECT, sandbox), None)}

    def fold(self, data: Any, seconds: float = 200) -> set[str]:
        keys = self.scope.branches.fold(PROJECT, data, at(seconds))
        index = self.scope.index
        return {member.sandbox for key in keys for member in (*index.on_branch(*key), *index.on_base(*key))}

    @property
    def members(self) -> Mapping[tuple[str, str], ProjectMember]:
        return self.scope.index.members
