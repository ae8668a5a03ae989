"""Room for sandboxes: how many may live in all, of each project, and in each runtime; and how many do."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.settings import Settings


@dataclass(frozen=True)
class Allowed:
    """How many sandboxes may live at once. None: as many as in all."""

    total: int
    project: int | None = None
    """Of a project that is not named."""
    projects: Mapping[str, int | None] = field(default_factory=dict)
    runtimes: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """What the settings allow."""
        return cls(
            total=settings.max_sandboxes,
            project=settings.max_sandboxes_per_project,
            projects=settings.project_limits,
            runtimes=settings.runtime_limits,
        )

    def in_project(self, project: str) -> int:
        """How many of this project may live."""
        limit = self.projects.get(project, self.project)
        return self.total if limit is None else min(limit, self.total)

    def in_runtime(self, runtime: str) -> int:
        """How many may live in this runtime."""
        limit = self.runtimes.get(runtime)
        return self.total if limit is None else min(limit, self.total)


class Room:
    """Counts the sandboxes that live, with those that are being made or ended."""

    def __init__(self, allowed: Allowed) -> None:
        self._allowed = allowed
        self._live: dict[str, SandboxView] = {}
        self._projects: Counter[str] = Counter()
        self._runtimes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def change(self, key: str, sandbox: SandboxView) -> None:
        """Take in a sandbox as it stands."""
        self.remove(key)
        if sandbox.state not in SANDBOX_ENDED:
            self._live[key] = sandbox
            self._projects[sandbox.project] += 1
            self._runtimes[sandbox.runtime] += 1

    def remove(self, key: str) -> SandboxView | None:
        """It is gone. Returns it, if it had lived until now."""
        sandbox = self._live.pop(key, None)
        if sandbox is not None:
            _less(self._projects, sandbox.project)
            _less(self._runtimes, sandbox.runtime)
        return sandbox

    @property
    def full(self) -> bool:
        """Whether no other may be made at all."""
        return len(self._live) >= self._allowed.total

    def project_full(self, project: str) -> bool:
        """Whether no other may be made for this project."""
        return self._projects[project] >= self._allowed.in_project(project)

    def runtime_full(self, runtime: str) -> bool:
        """Whether no other may be made in this runtime."""
        return self._runtimes[runtime] >= self._allowed.in_runtime(runtime)

    def lacking(self, project: str, runtime: str) -> str | None:
        """Why there is no room for one, in words; None if there is."""
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
