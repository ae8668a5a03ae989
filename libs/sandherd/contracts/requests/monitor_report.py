"""The request to the monitor for its report: conflicts between sandboxes of a project, and what waits for a user."""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import BaseModel, Field

from sandherd.contracts.events.monitor import ConductorFindingKind, ConflictSeverity, DependencyCause, LineRange
from sandherd.contracts.model import Count, Model, Moment
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.base import Request
from sandherd.contracts.requests.budgets import BudgetLine
from sandherd.contracts.requests.monitor import InterventionView

MAX_PROJECTS: Final = 100
MAX_LISTED: Final = 200
MAX_LAST: Final = 3


class HindranceView(Model):
    """An open finding about two sandboxes, or about a sandbox and a dependency of its task."""

    finding_id: str
    kind: ConductorFindingKind
    sandbox: SafeName
    """The sandbox that the finding is about. If it is about two, the one that began later."""
    task: SafeName
    other: str
    """The sandbox that began earlier. For a dependency, the task or branch that has changed."""
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
    """When a message about the finding was sent to the agents."""
    notified_at: Moment | None = None
    """When users were notified of the finding."""
    paused_at: Moment | None = None
    """When the sandbox was paused because of the finding."""


class SteeredView(Model):
    """The monitor's interventions in a live sandbox, and the patterns that it finds there at present."""

    sandbox: SafeName
    task: SafeName | None = None
    interventions: Count = 0
    """How often the guardian has intervened."""
    informed_at: Moment | None = None
    """When the conductor last sent a message to the agent."""
    findings: list[str] = Field(default_factory=list)
    """The guardian rules that find a pattern in the sandbox at present."""
    last: list[InterventionView] = Field(default_factory=list, max_length=MAX_LAST)
    """The last three interventions of the guardian, oldest first; `monitor.show` has more, and their evidence."""


class NeedView(Model):
    """A sandbox, a task or a project that waits for a user."""

    sandbox: SafeName | None = None
    """None: what waits is a task without a live sandbox, or the project."""
    task: SafeName | None = None
    """None: what waits is the project, or a sandbox without a task."""
    reason: Literal["waiting", "paused", "coordination", "budget"]
    """`waiting`: for an approval or a message; `paused`; `coordination`: two sandboxes hinder each other, and a user
    was notified; `budget`: a budget is exceeded, and a user may grant more."""
    since: Moment
    approval_id: str | None = None
    """The approval that a pause by the guardian has requested."""


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
    """Number of live sandboxes with a task."""
    findings: list[HindranceView] = Field(default_factory=list, max_length=MAX_LISTED)
    """Open findings, the heaviest first, at most 200."""
    finding_count: Count = 0
    """Number of open findings, including those that are not listed."""
    interventions: list[SteeredView] = Field(default_factory=list, max_length=MAX_LISTED)
    outcomes: dict[str, Count] = Field(default_factory=dict)
    """The number of the guardian's interventions by outcome, or `pending`. The last 20 of each sandbox count, if the
    sandbox is live or ended within the last week."""
    budgets: list[BudgetLine] | None = Field(default=None, max_length=MAX_LISTED)
    """The limits of the project, and the limits of its tasks of which four fifths are used. None: the ledgers can't be
    read at present."""
    needs: list[NeedView] = Field(default_factory=list, max_length=MAX_LISTED)
    """What waits for a user; the longest wait comes first."""


class MonitorReport(Model):
    """The report of the monitor, by project."""

    mode: Literal["off", "report", "inform", "ask", "pause"]
    """What the conductor does about findings (`SANDHERD_CONDUCTOR`); with `off` there are none."""
    projects: list[ProjectReport]
    """The requested project. In a report about all projects: those with live sandboxes or findings, and those over
    budget, at most 100."""
    budgets: list[BudgetLine] | None = None
    """The limits of the herd, if the report is about all projects; None also if the ledgers can't be read."""


class GetMonitorReport(Request[MonitorReport]):
    """Report conflicts between the sandboxes of a project, and what waits for a user."""

    Answer: ClassVar[type[BaseModel]] = MonitorReport
    type: ClassVar[str] = "monitor.report"
