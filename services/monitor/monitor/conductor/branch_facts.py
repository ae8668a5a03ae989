"""Facts about branches from the spawner's events: conflicts of trial merges, and paths that a merge changed in a base.

Pure. These events are few, and not of agents.
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from monitor.conductor.ignored_files import is_plain
from monitor.conductor.members import repository_key
from sandherd.contracts.events import EventData
from sandherd.contracts.events.branch import (
    BranchCreated,
    BranchDeleted,
    BranchEvent,
    BranchMerged,
    BranchOverlapFound,
    BranchSaved,
)

MAX_BRANCHES: Final = 5000
"""Maximum number of branches. If there are more, those whose creation or last save is the oldest are dropped."""
MAX_MERGES: Final = 20
"""Maximum number of merges into a base that are compared. They are the most recent ones."""
BranchKey = tuple[str, str, str]
"""The project, the repository and the branch."""


@dataclass(frozen=True, slots=True)
class BranchMerge:
    """A branch that was merged into its base, and the paths that it changed."""

    branch: str
    at: datetime
    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class BranchFacts:
    """A branch: its base, the paths that it has changed, and the branches that it can't be merged with."""

    base: str | None = None
    paths: frozenset[str] = frozenset()
    conflicts: dict[str, frozenset[str]] = field(default_factory=dict)
    """The paths in conflict, by the name of the other branch."""


class Branches:
    """All branches with an event, by their keys."""

    def __init__(self) -> None:
        self._facts: OrderedDict[BranchKey, BranchFacts] = OrderedDict()
        self._merges_by_base: dict[BranchKey, tuple[BranchMerge, ...]] = {}
        self._conflict_finders: dict[BranchKey, set[str]] = {}
        """For each branch, the branches whose trial merges have found a conflict with it."""

    def fold(self, project: str, data: EventData, at: datetime) -> set[BranchKey]:
        """Fold in an event. Returns the branches whose sandboxes' findings may have changed."""
        repository = repository_key(data.repository) if isinstance(data, BranchEvent) else None
        if repository is None or not isinstance(data, BranchEvent):
            return set()
        key = project, repository, data.branch
        earlier = self._facts.get(key, BranchFacts())
        match data:
            case BranchCreated():
                self._store(key, BranchFacts(base=data.base))
            case BranchSaved():
                self._store(key, replace(earlier, paths=frozenset(filter(is_plain, data.paths))))
            case BranchOverlapFound():
                conflicts = {overlap.branch: frozenset(filter(is_plain, overlap.paths)) for overlap in data.overlaps}
                return self._set_conflicts(key, earlier, conflicts)
            case BranchMerged():
                return self._record_merge(key, earlier, at) | self._set_conflicts(key, earlier, {})
            case BranchDeleted():
                return self._set_conflicts(key, earlier, {})
            case _:
                return set()
        return {key}

    def _store(self, key: BranchKey, facts: BranchFacts) -> None:
        self._facts[key] = facts
        self._facts.move_to_end(key)
        while len(self._facts) > MAX_BRANCHES:
            oldest = next(iter(self._facts))
            self._set_conflicts(oldest, self._facts[oldest], {})
            self._facts.pop(oldest, None)
            self._merges_by_base.pop(oldest, None)

    def _set_conflicts(
        self, key: BranchKey, before: BranchFacts, conflicts: dict[str, frozenset[str]]
    ) -> set[BranchKey]:
        project, repository, branch = key
        for other in before.conflicts.keys() - conflicts.keys():
            self._conflict_finders.get((project, repository, other), set()).discard(branch)
        for other in conflicts:
            self._conflict_finders.setdefault((project, repository, other), set()).add(branch)
        self._facts[key] = replace(before, conflicts=conflicts)
        return {key, *((project, repository, other) for other in before.conflicts.keys() | conflicts.keys())}

    def _record_merge(self, key: BranchKey, before: BranchFacts, at: datetime) -> set[BranchKey]:
        """Record the merge. Returns the branch, and its base: every sandbox that works on the base is affected."""
        if before.base is None:
            return {key}
        project, repository, branch = key
        base = project, repository, before.base
        merges = *self._merges_by_base.get(base, ()), BranchMerge(branch, at, before.paths)
        self._merges_by_base[base] = merges[-MAX_MERGES:]
        return {key, base}

    def merges_into(self, base: BranchKey) -> tuple[BranchMerge, ...]:
        """The most recent merges into a base."""
        return self._merges_by_base.get(base, ())

    def conflicts_of(self, key: BranchKey) -> Iterator[tuple[str, frozenset[str]]]:
        """The branches that can't be merged with this one, by its own trial merges and those of the others."""
        project, repository, branch = key
        own = self._facts[key].conflicts if key in self._facts else {}
        yield from own.items()
        for other in self._conflict_finders.get(key, set()) - own.keys():
            facts = self._facts.get((project, repository, other))
            if facts is not None and branch in facts.conflicts:
                yield other, facts.conflicts[branch]
