"""How many sandboxes may live: in all, of one project, in one runtime. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Self

from sandherd.contracts.requests import SandboxView
from sandherd.contracts.states import SANDBOX_ENDED
from sandherd.settings import Settings


@dataclass(frozen=True)
class Ceilings:
    """The most sandboxes that may live at once; None is no limit beside that in all."""

    in_all: int
    usual_project: int | None = None
    projects: Mapping[str, int | None] = field(default_factory=dict)
    runtimes: Mapping[str, int | None] = field(default_factory=dict)

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the herd is set."""
        return cls(
            in_all=settings.max_sandboxes,
            usual_project=settings.max_sandboxes_per_project,
            projects=settings.project_limits,
            runtimes=settings.runtime_limits,
        )

    def of_project(self, project: str) -> int | None:
        """The most of one project."""
        return self.projects.get(project, self.usual_project)


@dataclass(frozen=True)
class Living:
    """How many sandboxes live now, or are being made or ended."""

    in_all: int
    projects: Mapping[str, int]
    runtimes: Mapping[str, int]

    @classmethod
    def count(cls, views: Iterable[SandboxView]) -> Self:
        """Count those that have not ended."""
        live = [view for view in views if view.state not in SANDBOX_ENDED]
        return cls(len(live), Counter(view.project for view in live), Counter(view.runtime for view in live))


def full(project: str, runtime: str, living: Living, ceilings: Ceilings) -> str | None:
    """Which limit leaves no room for one more, in words; None if there is room."""
    of_project, of_runtime = living.projects.get(project, 0), living.runtimes.get(runtime, 0)
    found = (
        (living.in_all, ceilings.in_all, "live"),
        (of_project, ceilings.of_project(project), f"of project {project} live"),
        (of_runtime, ceilings.runtimes.get(runtime), f"in runtime {runtime} live"),
    )
    for count, most, what in found:
        if most is not None and count >= most:
            return f"{count} of {most} sandboxes {what}"
    return None
