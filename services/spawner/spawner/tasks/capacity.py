"""Capacity for live sandboxes: limits and counts in total, for each project and for each runtime."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.settings import Settings


@dataclass(frozen=True)
class SandboxLimits:
    """Maximum live sandboxes. None: only the total applies."""

    total: int
    project: int | None = None
    """Of a project that is not in `projects`."""
    projects: Mapping[str, int | None] = field(default_factory=dict)
    runtimes: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The limits from the settings."""
        return cls(
            total=settings.max_sandboxes,
            project=settings.max_sandboxes_per_project,
            projects=settings.project_limits,
            runtimes=settings.runtime_limits,
        )

    def in_project(self, project: str) -> int:
        """Maximum live sandboxes of this project."""
        limit = self.projects.get(project, self.project)
        return self.total if limit is None else min(limit, self.total)

    def in_runtime(self, runtime: str) -> int:
        """Maximum live sandboxes in this runtime."""
        limit = self.runtimes.get(runtime)
        return self.total if limit is None else min(limit, self.total)


class Capacity:
    """Counts live sandboxes, including those that are starting or ending."""

    def __init__(self, allowed: SandboxLimits) -> None:
        self._allowed = allowed
        self._live: dict[str, SandboxView] = {}
        self._projects: Counter[str] = Counter()
        self._runtimes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def change(self, key: str, sandbox: SandboxView) -> None:
        """Update a sandbox to its current state."""
        self.remove(key)
        if sandbox.state not in SANDBOX_ENDED:
            self._live[key] = sandbox
            self._projects[sandbox.project] += 1
            self._runtimes[sandbox.runtime] += 1

    def remove(self, key: str) -> SandboxView | None:
        """Remove a sandbox. Returns it if it was live until now."""
        sandbox = self._live.pop(key, None)
        if sandbox is not None:
            _less(self._projects, sandbox.project)
            _less(self._runtimes, sandbox.runtime)
        return sandbox

    @property
    def full(self) -> bool:
        """Whether the total limit is reached."""
        return len(self._live) >= self._allowed.total

    def project_full(self, project: str) -> bool:
        """Whether this project's limit is reached."""
        return self._projects[project] >= self._allowed.in_project(project)

    def runtime_full(self, runtime: str) -> bool:
        """Whether this runtime's limit is reached."""
        return self._runtimes[runtime] >= self._allowed.in_runtime(runtime)

    def exhausted_limit(self, project: str, runtime: str) -> str | None:
        """The limit that prevents another sandbox, as text; None if there is capacity."""
        total = self._allowed.total
        of_project, of_runtime = self._allowed.in_project(project), self._allowed.in_runtime(runtime)
        if self.project_full(project) and of_project < total:
            return f"{self._projects[project]} of {of_project} sandboxes of project {project} live"
        if self.runtime_full(runtime) and of_runtime < total:
            return f"{self._runtimes[runtime]} of {of_runtime} sandboxes in {runtime} live"
        return f"{len(self._live)} of {total} sandboxes live" if self.full else None


def _less(counter: Counter[str], name: str) -> None:
    counter[name] -= 1
    if not counter[name]:
        del counter[name]
