"""The request to the monitor for its report: how the sandboxes of a project hinder each other, and who needs a user."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.events.monitor import ConflictSeverity, DependencyCause, LineRange
from sandherd.contracts.model import Count, MicroDollars, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request

MAX_PROJECTS: Final = 100
MAX_LISTED: Final = 200


class HindranceView(Model):
    """An open finding about two sandboxes, or about one and what its task builds on."""

    finding_id: str
    kind: Literal["conflict", "duplicate", "dependency"]
    sandbox: SafeName
    """The sandbox that it is about: of two, the one that began later."""
    task: SafeName
    other: str
    """The sandbox that began earlier; of a dependency, the task or branch that has changed."""
    other_task: SafeName | None = None
    file_path: str | None = None
    """The file of a conflict."""
    paths: list[str] = Field(default_factory=list)
    """The changed files of a dependency."""
    severity: ConflictSeverity | None = None
    cause: DependencyCause | None = None
    similarity: Annotated[float, Field(ge=0, le=1)] | None = None
    lines: LineRange | None = None
    other_lines: LineRange | None = None
    since: Moment
    informed_at: Moment | None = None
    """When the agents were sent a message about it."""
    notified_at: Moment | None = None
    """When users were notified of it."""
    paused_at: Moment | None = None
    """When the sandbox was paused for it."""


class SteeredView(Model):
    """What the monitor has sent to a live sandbox's agent, and what it still sees there."""

    sandbox: SafeName
    task: SafeName | None = None
    interventions: Count = 0
    """How often the guardian has intervened."""
    informed_at: Moment | None = None
    """When the conductor last sent it a message."""
    findings: list[str] = Field(default_factory=list)
    """The guardian rules whose patterns it has now."""


class BudgetView(Model):
    """A budget, and how much of it is used."""

    budget: str
    """What is limited, and for whom."""
    limit: Count
    used: Count
    cost_micro_usd: MicroDollars | None = None


class NeedView(Model):
    """A sandbox that waits for a user."""

    sandbox: SafeName
    task: SafeName | None = None
    reason: Literal["waiting", "paused", "coordination"]
    """`waiting`: for an approval or a message; `paused`; `coordination`: two sandboxes hinder each other, and a user
    was notified."""
    since: Moment


class ProjectReport(Model):
    """The report of one project."""

    project: SafeName
    coherence_score: Annotated[float, Field(ge=0, le=1)]
    """1 if no sandbox is in an open finding; docs/conductor.md has the formula."""
    status: str
    """`coherent`, `strained` or `conflicted`."""
    reasons: list[str] = Field(default_factory=list)
    recommendations: list[str] = Field(default_factory=list)
    sandboxes: Count
    """Live sandboxes with a task."""
    findings: list[HindranceView] = Field(default_factory=list, max_length=MAX_LISTED)
    """Open findings, the heaviest first, at most 200."""
    finding_count: Count = 0
    """How many there are."""
    interventions: list[SteeredView] = Field(default_factory=list, max_length=MAX_LISTED)
    budgets: list[BudgetView] = Field(default_factory=list)
    needs: list[NeedView] = Field(default_factory=list, max_length=MAX_LISTED)
    """Sandboxes that wait for a user, those that wait longest first."""


class MonitorReport(Model):
    """The report of the monitor, by project."""

    mode: Literal["off", "report", "inform", "ask", "pause"]
    """What the conductor does about findings (`SANDHERD_CONDUCTOR`); with `off` there are none."""
    projects: list[ProjectReport]
    """The requested project; of all projects, those with live sandboxes or findings, at most 100."""


class AskMonitorReport(Request[MonitorReport]):
    """Report how much the sandboxes of a project hinder each other, and who needs a user."""

    Answer: ClassVar[type[BaseModel]] = MonitorReport
    type: ClassVar[str] = "monitor.report"
