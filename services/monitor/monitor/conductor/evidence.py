"""Finds the current evidence about a member: conflicts, duplicates, and changes of its dependencies. Pure.

Each piece of evidence is about the later of two sandboxes. These false positives are avoided: files that the settings
ignore, edits with equal content, lines that are only moved apart, and tasks that are meant to be alike. Unlike ConE, it
does not consider how rarely a file is edited concurrently, because that needs a history of pull requests.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final

from monitor.conductor.branch_facts import Branches
from monitor.conductor.herd_index import HerdIndex
from monitor.conductor.members import ProjectMember, are_alternatives
from monitor.conductor.similarity import Similarity, similarity
from sandherd.contracts.events.monitor import ConductorFindingKind, ConflictSeverity, DependencyCause
from sandherd.contracts.records import Edit

MAX_LINE_DISTANCE: Final = 3
"""Maximum distance of lines that count as overlapping: the context of a hunk, within which git's merge finds a
conflict."""
MAX_PATHS: Final = 20
"""Maximum number of paths in a conflict of two branches, and of changed paths of a dependency."""
_SEVERITY_RANK: Final[dict[ConflictSeverity, int]] = {"file": 0, "lines": 1, "merge": 2}
EvidenceKey = tuple[ConductorFindingKind, str, str, str]
"""The kind, the sandbox that it is about, the other sandbox, task or branch, and the path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The facts that a finding is based on."""

    kind: ConductorFindingKind
    sandbox: str
    other: str
    """The sandbox that began earlier. For a dependency: the task or branch that changed."""
    path: str = ""
    severity: ConflictSeverity | None = None
    lines: tuple[int, int] | None = None
    other_lines: tuple[int, int] | None = None
    similarity: Similarity | None = None
    cause: DependencyCause | None = None
    paths: tuple[str, ...] = ()

    @property
    def key(self) -> EvidenceKey:
        """The key that identifies the finding of this evidence in a project."""
        return self.kind, self.sandbox, self.other, self.path


@dataclass(frozen=True, slots=True)
class ProjectData:
    """The members and branches of one project, as a view of the indexes of all projects."""

    project: str
    index: HerdIndex
    branches: Branches

    def member(self, sandbox: str) -> ProjectMember | None:
        """A sandbox of the project."""
        return self.index.members.get((self.project, sandbox))


def is_more_severe(severity: ConflictSeverity | None, other: ConflictSeverity | None) -> bool:
    """Whether `severity` is above `other`."""
    return severity is not None and (other is None or _SEVERITY_RANK[severity] > _SEVERITY_RANK[other])


def evidence_of(
    member: ProjectMember, scope: ProjectData, open_keys: Collection[EvidenceKey]
) -> dict[EvidenceKey, Evidence]:
    """All evidence that involves this member, as the earlier or the later sandbox.

    `open_keys` are the keys of open findings.
    """
    by_key: dict[EvidenceKey, Evidence] = {}
    if not member.live:
        return by_key
    for evidence in (
        *_same_files(member, scope.index),
        *_merge_conflicts(member, scope),
        *_duplicates(member, scope.index, open_keys),
        *_dependencies(member, scope),
    ):
        earlier = by_key.get(evidence.key)
        if earlier is None or is_more_severe(evidence.severity, earlier.severity):
            by_key[evidence.key] = evidence
    return by_key


def _same_files(member: ProjectMember, index: HerdIndex) -> Iterator[Evidence]:
    for path, edit in member.edits.items():
        for other in index.editors(member, path):
            if not are_alternatives(member, other):
                yield from _same_file(member, other, path, edit, other.edits[path])


def _same_file(
    member: ProjectMember, other: ProjectMember, path: str, edit: Edit, other_edit: Edit
) -> Iterator[Evidence]:
    if edit.content_sha256 is not None and edit.content_sha256 == other_edit.content_sha256:
        return  # equal contents merge without a conflict
    first, later = sorted((member, other), key=lambda each: each.order)
    overlap = first_overlap(later.edits[path], first.edits[path])
    yield Evidence(
        kind="conflict",
        sandbox=later.sandbox,
        other=first.sandbox,
        path=path,
        severity="lines" if overlap else "file",
        lines=overlap[0] if overlap else None,
        other_lines=overlap[1] if overlap else None,
    )


def first_overlap(edit: Edit, other: Edit) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The first ranges of lines of two edits that overlap; None if none do, or the lines are not known.

    The ranges of an edit are in order, with lines between them.
    """
    ranges, other_ranges = iter(edit.ranges), iter(other.ranges)
    lines, other_lines = next(ranges, None), next(other_ranges, None)
    while lines is not None and other_lines is not None:
        if lines[0] <= other_lines[1] + MAX_LINE_DISTANCE and other_lines[0] <= lines[1] + MAX_LINE_DISTANCE:
            return lines, other_lines
        if lines[1] < other_lines[1]:
            lines = next(ranges, None)
        else:
            other_lines = next(other_ranges, None)
    return None


def _merge_conflicts(member: ProjectMember, scope: ProjectData) -> Iterator[Evidence]:
    """Conflicts that the spawner's trial merges found; these are the most certain ones."""
    if member.repository is None or member.branch is None:
        return
    for branch, paths in scope.branches.conflicts_of((member.project, member.repository, member.branch)):
        for other in scope.index.on_branch(member.project, member.repository, branch):
            if not other.live or are_alternatives(member, other):
                continue
            first, later = sorted((member, other), key=lambda each: each.order)
            for path in sorted(paths)[:MAX_PATHS]:
                yield Evidence(kind="conflict", sandbox=later.sandbox, other=first.sandbox, path=path, severity="merge")


def _duplicates(member: ProjectMember, index: HerdIndex, open_keys: Collection[EvidenceKey]) -> Iterator[Evidence]:
    for other, text in index.similar_members(member):
        first, later = sorted((member, other), key=lambda each: each.order)
        likeness = similarity(text, member.edits, other.edits)
        key: EvidenceKey = ("duplicate", later.sandbox, first.sandbox, "")
        if likeness.is_duplicate(was_duplicate=key in open_keys):
            yield Evidence(kind="duplicate", sandbox=later.sandbox, other=first.sandbox, similarity=likeness)


def _dependencies(member: ProjectMember, scope: ProjectData) -> Iterator[Evidence]:
    """Changes of the dependencies of a member: of tasks, and of its base."""
    for task in sorted(member.context.builds_on):
        providers = scope.index.of_task(member.project, task)
        yield from _changed_dependencies(
            member, task, "task", {path for provider in providers for path in _edited_since(provider, member)}
        )
    if member.repository is None or member.base is None:
        return
    base = member.project, member.repository, member.base
    for merge in scope.branches.merges_into(base):
        if merge.at > member.started_at and merge.branch != member.branch:
            yield from _changed_dependencies(member, merge.branch, "base", merge.paths & member.edits.keys())
    changed = {path for provider in scope.index.on_branch(*base) for path in _edited_since(provider, member)}
    conflicts = _conflicts_with_base(member, scope)
    yield from _changed_dependencies(member, member.base, "base", (changed & member.edits.keys()) | conflicts)


def _conflicts_with_base(member: ProjectMember, scope: ProjectData) -> frozenset[str]:
    """The paths in which a trial merge of a member's branch with its base has conflicts."""
    if member.repository is None or member.branch is None:
        return frozenset()
    conflicts = scope.branches.conflicts_of((member.project, member.repository, member.branch))
    return next((paths for branch, paths in conflicts if branch == member.base), frozenset())


def _edited_since(provider: ProjectMember, member: ProjectMember) -> set[str]:
    """The files that `provider` has edited since `member` began."""
    if provider.task == member.task:
        return set()
    return {path for path, edit in provider.edits.items() if edit.at > member.started_at}


def _changed_dependencies(
    member: ProjectMember, other: str, cause: DependencyCause, paths: Collection[str]
) -> Iterator[Evidence]:
    if paths:
        listed = tuple(sorted(paths, key=lambda path: (path not in member.edits, path))[:MAX_PATHS])
        yield Evidence(kind="dependency", sandbox=member.sandbox, other=other, cause=cause, paths=listed)
