"""Capacity for live sandboxes: limits and counts in total, for each project and for each runtime."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from sandherd.contracts.records import BudgetBlocks
from sandherd.contracts.requests import LimitView, ProjectLimits, SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.settings import Settings

OF_PROJECT: Final = "project"
"""The source of a limit that is set in the record of a project."""
_NO_LIMITS: Final = ProjectLimits()


@dataclass(frozen=True)
class SandboxLimits:
    """The maximum numbers of live sandboxes. Where a limit is None, only the total applies."""

    total: int
    project: int | None = None
    """The limit of a project that is not in `projects`."""
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

    def in_project(self, project: str, recorded: int | None = None) -> int:
        """Maximum live sandboxes of this project; `recorded` is the limit in its record, None if there is none."""
        limit = self.projects.get(project, self.project) if recorded is None else recorded
        return self.total if limit is None else min(limit, self.total)

    def source(self, project: str, recorded: int | None) -> str:
        """The source of the maximum of this project: `project` for its record, else the name of a setting."""
        limit = self.projects.get(project, self.project) if recorded is None else recorded
        if limit is None or limit > self.total:
            return "max_sandboxes"
        if recorded is not None:
            return OF_PROJECT
        return "project_limits" if project in self.projects else "max_sandboxes_per_project"

    def in_runtime(self, runtime: str) -> int:
        """Maximum live sandboxes in this runtime."""
        limit = self.runtimes.get(runtime)
        return self.total if limit is None else min(limit, self.total)


class Capacity:
    """Counts live sandboxes, including those that are starting or ending."""

    def __init__(self, allowed: SandboxLimits) -> None:
        self._allowed = allowed
        self._live: dict[str, SandboxView] = {}
        self._records: dict[str, ProjectLimits] = {}
        self._blocks = BudgetBlocks()
        self._projects: Counter[str] = Counter()
        self._tasks: Counter[str] = Counter()
        """For each project, the number of its live sandboxes that have a task."""
        self._runtimes: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._live)

    def change(self, key: str, sandbox: SandboxView) -> None:
        """Update a sandbox to its current state."""
        self.remove(key)
        if sandbox.state not in SANDBOX_ENDED:
            self._live[key] = sandbox
            self._projects[sandbox.project] += 1
            self._tasks[sandbox.project] += sandbox.task is not None
            self._runtimes[sandbox.runtime] += 1

    def remove(self, key: str) -> SandboxView | None:
        """Remove a sandbox. Returns it if it was live until now."""
        sandbox = self._live.pop(key, None)
        if sandbox is not None:
            _decrement(self._projects, sandbox.project)
            _decrement(self._tasks, sandbox.project, int(sandbox.task is not None))
            _decrement(self._runtimes, sandbox.runtime)
        return sandbox

    @property
    def full(self) -> bool:
        """Whether the total limit is reached."""
        return len(self._live) >= self._allowed.total

    def set_limits(self, project: str, limits: ProjectLimits | None) -> None:
        """Set the limits that the record of a project contains; None if its record was removed."""
        self._records.pop(project, None)
        if limits is not None:
            self._records[project] = limits

    def set_blocks(self, blocks: BudgetBlocks) -> None:
        """Set the projects that exceed a budget at present."""
        self._blocks = blocks

    def project_full(self, project: str) -> bool:
        """Whether no task of this project may begin: a limit of sandboxes or tasks is reached, or a budget exceeded."""
        return self._sandboxes_full(project) or self._tasks_full(project) or self.over_budget(project) is not None

    def over_budget(self, project: str) -> str | None:
        """The exceeded budget of the herd or of this project, as text; None if none is exceeded."""
        return self._blocks.herd or self._blocks.projects.get(project)

    def _sandboxes_full(self, project: str) -> bool:
        return self._projects[project] >= self._allowed.in_project(project, self._limits_in_record(project).sandboxes)

    def _tasks_full(self, project: str) -> bool:
        limit = self._limits_in_record(project).tasks
        return limit is not None and self._tasks[project] >= limit

    def _limits_in_record(self, project: str) -> ProjectLimits:
        return self._records.get(project, _NO_LIMITS)

    def sandboxes_of(self, project: str) -> LimitView:
        """The live sandboxes of a project, and their limit."""
        recorded = self._limits_in_record(project).sandboxes
        maximum, source = self._allowed.in_project(project, recorded), self._allowed.source(project, recorded)
        return LimitView(maximum=maximum, source=source, used=self._projects[project])

    def tasks_of(self, project: str) -> LimitView:
        """The number of the project's tasks that have a live sandbox, and its limit of tasks.

        If it has no limit of tasks, or its limit of sandboxes is lower, the limit of sandboxes is returned.
        """
        own, used, boxes = self._limits_in_record(project).tasks, self._tasks[project], self.sandboxes_of(project)
        if own is None or own > boxes.maximum:
            return boxes.model_copy(update={"used": used})
        return LimitView(maximum=own, source=OF_PROJECT, used=used)

    def projects(self) -> frozenset[str]:
        """The projects with live sandboxes, or with a limit in the settings."""
        return frozenset({*self._projects, *self._allowed.projects})

    def runtime_full(self, runtime: str) -> bool:
        """Whether this runtime's limit is reached."""
        return self._runtimes[runtime] >= self._allowed.in_runtime(runtime)

    def pause(self, project: str, *, of_task: bool = True) -> str | None:
        """Why no task (or no sandbox without a task) of this project may begin at present, as text, or None.

        Either an operator has set a limit of the project to 0, or, for a task, a budget is exceeded.
        """
        own = self._limits_in_record(project)
        paused = [name for name in (("tasks", "sandboxes") if of_task else ("sandboxes",)) if getattr(own, name) == 0]
        if not paused:
            return f"{over}: no task begins" if of_task and (over := self.over_budget(project)) else None
        remedy = f"raise it with `sandherd projects set {project} --{paused[0]} N`"
        return f"the limit of {paused[0]} of project {project} is 0; {remedy}"

    def exhausted_limit(self, project: str, runtime: str, *, of_task: bool = True) -> str | None:
        """The limit that prevents another sandbox, with or without a task, as text; None if there is capacity."""
        total = self._allowed.total
        boxes, of_runtime = self.sandboxes_of(project), self._allowed.in_runtime(runtime)
        if paused := self.pause(project, of_task=of_task):
            return paused
        if of_task and self._tasks_full(project):
            return (
                f"{self._tasks[project]} of {self._limits_in_record(project).tasks} tasks of project {project} at work"
            )
        if self._sandboxes_full(project) and boxes.maximum < total:
            return f"{boxes.used} of {boxes.maximum} sandboxes of project {project} live"
        if self.runtime_full(runtime) and of_runtime < total:
            return f"{self._runtimes[runtime]} of {of_runtime} sandboxes in {runtime} live"
        return f"{len(self._live)} of {total} sandboxes live" if self.full else None


def _decrement(counter: Counter[str], name: str, by: int = 1) -> None:
    counter[name] -= by
    if not counter[name]:
        del counter[name]
