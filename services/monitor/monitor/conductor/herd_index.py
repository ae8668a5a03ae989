"""An index of all members by edited files, shingles of titles (`similarity`), branches and tasks. Pure.

The cost of a change is proportional to the changed summary and to the members that share something with it. It does not
depend on the number of members and of events.
"""

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Final, Generic, TypeVar

from monitor.conductor.members import Group, ProjectMember, are_similar_on_purpose
from monitor.conductor.similarity import CANDIDATE, text_similarity
from monitor.facts import Key

MAX_EDITORS: Final = 20
"""Maximum number of members that edit the same file and are compared: the first ones. A file with more editors is one
that every task edits."""
MAX_TITLES_OF_SHINGLE: Final = 200
"""Maximum number of titles with a shingle. A more frequent shingle is ignored: its titles come from one template."""
KeyT = TypeVar("KeyT", bound=Hashable)


class InvertedIndex(Generic[KeyT]):
    """An inverted index: the members by a key that they have, in the order in which they were added."""

    def __init__(self) -> None:
        self._members: dict[KeyT, dict[Key, None]] = {}

    def add(self, key: KeyT, member: Key) -> None:
        """Add a member."""
        self._members.setdefault(key, {})[member] = None

    def discard(self, key: KeyT, member: Key) -> None:
        """Remove a member, if the index has it."""
        members = self._members.get(key)
        if members is not None:
            members.pop(member, None)
            if not members:
                del self._members[key]

    def of(self, key: KeyT) -> dict[Key, None]:
        """The members with this key."""
        return self._members.get(key, {})


class HerdIndex:
    """All members, with queries for members that have something in common."""

    def __init__(self) -> None:
        self.members: dict[Key, ProjectMember] = {}
        self.comparison_count = 0
        """Number of comparisons of two members, by a file or by titles. It measures the work."""
        self._by_project: InvertedIndex[str] = InvertedIndex()
        self._by_file: InvertedIndex[tuple[Group, str]] = InvertedIndex()
        self._by_shingle: InvertedIndex[tuple[Group, tuple[str, ...]]] = InvertedIndex()
        self._by_branch: InvertedIndex[tuple[str, str, str]] = InvertedIndex()
        self._by_base: InvertedIndex[tuple[str, str, str]] = InvertedIndex()
        self._by_task: InvertedIndex[tuple[str, str]] = InvertedIndex()
        self._by_dependency: InvertedIndex[tuple[str, str]] = InvertedIndex()
        self._similar_titles: dict[Key, dict[Key, float]] = {}

    def replace(self, key: Key, member: ProjectMember | None) -> set[Key]:
        """Set or remove a member. Returns the members whose findings may have changed."""
        before = self.members.get(key)
        affected = {key, *self._dependent_members(before), *self._dependent_members(member)}
        if before is not None and (member is None or not _same_index_keys(before, member)):
            affected |= self._remove(before)
            before = None
        if member is None:
            return affected
        self.members[key] = member
        self._set_files(before, member)
        if before is None:
            self._add(member)
        return affected

    def _dependent_members(self, member: ProjectMember | None) -> dict[Key, None]:
        """The members that depend on the task or the branch of this one."""
        if member is None:
            return {}
        dependent = dict(self._by_dependency.of((member.project, member.task)))
        if member.repository is not None and member.branch is not None:
            dependent |= self._by_base.of((member.project, member.repository, member.branch))
        return dependent

    def _set_files(self, before: ProjectMember | None, member: ProjectMember) -> None:
        """Update the index of edited files. A finished member has no files in it, so they are not compared."""
        old_paths = before.edits.keys() if before is not None and before.live else ()
        new_paths = member.edits.keys() if member.live else ()
        for path in set(old_paths) - set(new_paths):
            self._by_file.discard((member.group, path), member.key)
        for path in set(new_paths) - set(old_paths):
            self._by_file.add((member.group, path), member.key)

    def _add(self, member: ProjectMember) -> None:
        self._by_project.add(member.project, member.key)
        self._by_task.add((member.project, member.task), member.key)
        for task in member.context.builds_on:
            self._by_dependency.add((member.project, task), member.key)
        for postings, name in ((self._by_branch, member.branch), (self._by_base, member.base)):
            if member.repository is not None and name is not None:
                postings.add((member.project, member.repository, name), member.key)
        self._similar_titles[member.key] = self._find_similar_titles(member)
        for other, likeness in self._similar_titles[member.key].items():
            self._similar_titles[other][member.key] = likeness
        for shingle in member.title.shingles:
            self._by_shingle.add((member.group, shingle), member.key)

    def _find_similar_titles(self, member: ProjectMember) -> dict[Key, float]:
        """The members with a similar title. It is computed once for a title, because titles don't change."""
        similar: dict[Key, float] = {}
        candidates: set[Key] = set()
        for shingle in member.title.shingles:
            members = self._by_shingle.of((member.group, shingle))
            if len(members) <= MAX_TITLES_OF_SHINGLE:
                candidates.update(members)
        for key in candidates:
            other = self.members[key]
            self.comparison_count += 1
            likeness = text_similarity(member.title, other.title)
            if likeness >= CANDIDATE and not are_similar_on_purpose(member, other):
                similar[key] = likeness
        return similar

    def _remove(self, member: ProjectMember) -> set[Key]:
        """Remove a member. Returns the members with a similar title."""
        key = member.key
        del self.members[key]
        for path in member.edits:
            self._by_file.discard((member.group, path), key)
        for shingle in member.title.shingles:
            self._by_shingle.discard((member.group, shingle), key)
        self._by_project.discard(member.project, key)
        self._by_task.discard((member.project, member.task), key)
        for task in member.context.builds_on:
            self._by_dependency.discard((member.project, task), key)
        for postings, name in ((self._by_branch, member.branch), (self._by_base, member.base)):
            if member.repository is not None and name is not None:
                postings.discard((member.project, member.repository, name), key)
        similar = self._similar_titles.pop(key, {})
        for other in similar:
            self._similar_titles[other].pop(key, None)
        return set(similar)

    # --- what members have in common ---------------------------------------------------------------------------

    def of_project(self, project: str) -> Iterator[ProjectMember]:
        """The members of a project."""
        return (self.members[key] for key in self._by_project.of(project))

    def editors(self, member: ProjectMember, path: str) -> list[ProjectMember]:
        """The other live members that edit the same file. Empty if this member is not among its first `MAX_EDITORS`."""
        keys = list(islice(self._by_file.of((member.group, path)), MAX_EDITORS))
        if len(keys) == 1 or member.key not in keys:
            return []
        self.comparison_count += len(keys) - 1
        return [self.members[key] for key in keys if key != member.key]

    def similar_members(self, member: ProjectMember) -> Iterator[tuple[ProjectMember, float]]:
        """The other live members with a similar title, and how similar it is."""
        for key, likeness in self._similar_titles.get(member.key, {}).items():
            other = self.members[key]
            self.comparison_count += 1
            if other.live:
                yield other, likeness

    def on_branch(self, project: str, repository: str, branch: str) -> list[ProjectMember]:
        """The members that work on a branch."""
        return [self.members[key] for key in self._by_branch.of((project, repository, branch))]

    def on_base(self, project: str, repository: str, base: str) -> list[ProjectMember]:
        """The members whose branches began at a base."""
        return [self.members[key] for key in self._by_base.of((project, repository, base))]

    def of_task(self, project: str, task: str) -> list[ProjectMember]:
        """The members that run a task."""
        return [self.members[key] for key in self._by_task.of((project, task))]


def _same_index_keys(member: ProjectMember, other: ProjectMember) -> bool:
    """Whether two states of a member have the same index keys, except for their files."""
    return (member.group, member.branch, member.task, member.title, member.context) == (
        other.group,
        other.branch,
        other.task,
        other.title,
        other.context,
    )
