"""Records in key-value buckets that services other than their owner read.

The spawner writes `tasks` and `sandboxes`, with more fields than these; a field at its default is absent. The monitor
writes `summaries`. Others read a record by `sandherd.bus.kv.read_record`. Golden examples are in `golden/v1/records`.
"""

from typing import Annotated, ClassVar, Final, Literal

from pydantic import AwareDatetime, ConfigDict, Field

from sandherd.contracts.attempt_inputs import Previous
from sandherd.contracts.budgets import BudgetLimits
from sandherd.contracts.events.agent import TaskKind
from sandherd.contracts.events.base import Digest
from sandherd.contracts.events.monitor import InterventionOutcome, InterventionStep
from sandherd.contracts.model import Attempt, Count, MicroDollars, Model, Moment, Seconds
from sandherd.contracts.names import SafeName
from sandherd.contracts.states import TASK_ENDED, SandboxState, TaskState


class SharedRecord(Model):
    """The part of a record that other services read. Its key is `<project>.<name>`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    bucket: ClassVar[str]
    """The bucket that holds it."""


class SharedSandboxRecord(SharedRecord):
    """A sandbox: its state, and the attempt of a task that runs in it."""

    bucket: ClassVar[str] = "sandboxes"

    state: SandboxState = SandboxState.REQUESTED
    task: SafeName | None = None
    """None: it was requested without a task, and no agent runs in it."""
    attempt: int = 1
    unit: SafeName | None = None
    """The name that its runtime uses for it, if that is not its own: a sandbox of the pool had another name before."""
    reason: str | None = None
    """Why it was ended."""
    expires_at: AwareDatetime | None = None
    """When its time to live ends."""


class SharedTaskRecord(SharedRecord):
    """A task: its state, and the sandboxes of its attempts."""

    bucket: ClassVar[str] = "tasks"

    state: TaskState = TaskState.PENDING
    life: str
    """32 hexadecimal digits, derived from the command that submitted it: distinguishes two tasks of the same name."""
    attempt: int = 1
    sandbox: SafeName | None = None
    """The sandbox of the current attempt: events of any other sandbox change nothing."""
    previous: Previous | None = None
    """The previous attempt, and what it stored."""

    @property
    def ended(self) -> bool:
        """Whether it is in a final state, which only a user's request leaves."""
        return self.state in TASK_ENDED

    @property
    def sandboxes(self) -> frozenset[str]:
        """The sandboxes of the current attempt and of the previous one."""
        before = self.previous.sandbox if self.previous else None
        return frozenset(name for name in (self.sandbox, before) if name)


MAX_EDITS: Final = 200
"""Maximum number of edited files in a summary; of more, those that were edited last."""
MAX_RANGES: Final = 20
"""Maximum number of ranges of lines of an edited file."""
MAX_TITLE: Final = 500
MAX_STEERINGS: Final = 20

SummaryState = Literal["running", "waiting", "paused", "finished", "ended"]
LineRange = tuple[Count, Count]
"""The first and the last line, from 1, of the file after the change."""


class SummaryPart(Model):
    """A part of a summary. Unknown fields are ignored, so that summaries of newer monitors can be read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SandboxUsage(SummaryPart):
    """What a sandbox has used, in total. A total that a harness does not report is 0 and not `metered`."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0
    metered: bool = False
    """Whether its harness has reported tokens or costs."""
    priced: bool = False
    """Whether its harness has reported costs. If not, its cost is unknown, not zero."""
    unmetered_turns: Count = 0
    """Ended turns for which its harness reported neither tokens nor costs."""
    implausible: Count = 0
    """Reports of usage that were not counted, because no turn can use as much."""
    wall_seconds: Seconds = 0
    """How long the agent has worked at `updated_at` of the summary, without pauses. While it is `running` or `waiting`,
    add the time since then."""

    @property
    def tokens(self) -> int:
        """All tokens, of whatever kind."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class Edit(SummaryPart):
    """A file that a sandbox has edited."""

    path: str
    """Relative to the work tree, with forward slashes."""
    content_sha256: Digest | None = None
    """As in the last `agent.file_edited` of it."""
    ranges: Annotated[tuple[LineRange, ...], Field(max_length=MAX_RANGES)] = ()
    """The changed lines, from the diffs of all its edits; of more than the maximum, the nearest are one. Empty if no
    diff is known, as of a binary file. Later edits may have moved the lines of earlier ones."""
    at: Moment
    """When it was last edited, by the broker's clock, in whole seconds."""
    count: Count = 1
    """How often it was edited."""


class OpenFinding(SummaryPart):
    """A pattern that the monitor sees in the behaviour of the agent at present."""

    rule: str
    count: Count = 0
    since: Moment


class SteeringSummary(SummaryPart):
    """An intervention of the guardian."""

    number: Count
    rule: str
    step: InterventionStep
    decided_at: Moment
    received_at: Moment | None = None
    """When the agent received its message, or continued after its pause."""
    outcome: InterventionOutcome | None = None
    """None: it is not known yet."""
    outcome_at: Moment | None = None
    approval_id: str | None = None
    """The approval that a pause has requested."""


class SandboxSummary(SharedRecord):
    """What the monitor knows of a sandbox, from its events: written at most every two seconds, while it changes.

    Totals are of this sandbox, so of one attempt, and never decrease. A reader ignores a summary whose `sequence` is
    less than that of one that it has read. That of an ended sandbox has no edits, and is deleted after a week.
    """

    bucket: ClassVar[str] = "summaries"

    project: SafeName
    sandbox: SafeName
    task: SafeName | None = None
    """None: it runs no task, or no event of its worker was received yet."""
    attempt: Attempt = 1
    harness: str | None = None
    repository: str | None = None
    """The git repository that it works on: its URL, or the label of a local one."""
    base: str | None = None
    branch: str | None = None
    title: Annotated[str, Field(max_length=MAX_TITLE)] = ""
    """The beginning of the task's text."""
    task_kind: TaskKind | None = None
    started_at: Moment
    """When the sandbox's first event was stored; all times are the broker's."""
    updated_at: Moment
    """When the last event that it is based on was stored."""
    sequence: Count
    """The stream sequence of that event."""
    state: SummaryState = "running"
    """`waiting`: for an approval or a message; `finished`: its agent has ended; `ended`: the sandbox has ended."""
    turns: Count = 0
    """Ended turns."""
    tool_calls: Count = 0
    """Ended calls of tools."""
    errors: Count = 0
    """Errors of the agent, and calls of tools that failed."""
    spending: SandboxUsage = SandboxUsage()
    edits: Annotated[tuple[Edit, ...], Field(max_length=MAX_EDITS)] = ()
    """Edited files, the last one last."""
    findings: tuple[OpenFinding, ...] = ()
    interventions: Count = 0
    """How often the monitor has intervened."""
    steerings: Annotated[tuple[SteeringSummary, ...], Field(max_length=MAX_STEERINGS)] = ()
    """The last interventions of the guardian, oldest first."""
    budget: BudgetLimits | None = None
    """The budget of its task, by the spec or the profile."""


AccessRole = Literal["read", "work", "approve", "operate"]
"""What the holder of an access token may do; each role may do what those before it may, too."""
TokenKind = Literal["token", "session", "code"]
"""`token` is sent by programs in a header, `session` by a browser in its cookie; a `code` creates one session."""


class SharedAccessToken(SharedRecord):
    """An access token of the HTTP API, a browser's session, or a code that creates one.

    The key is `<project>.<SHA-256 of its text, as 64 hexadecimal digits>`.
    """

    bucket: ClassVar[str] = "tokens"

    project: SafeName
    token: SafeName
    """Its name."""
    role: AccessRole
    expires_at: AwareDatetime
    kind: TokenKind = "token"
    user: str | None = None
    """Who uses a session, for the fields of commands that say who issued them. None for a token: its name says it."""


class BudgetBlocks(SharedRecord):
    """The projects that are over budget, for the spawner: none of their tasks begins. The key is `fleet.blocked`."""

    bucket: ClassVar[str] = "budgets"

    herd: str | None = None
    """Why no task begins at all."""
    projects: dict[SafeName, str] = Field(default_factory=dict)
    """Why no task begins, by project."""


RECORDS: dict[str, type[SharedRecord]] = {
    "budget_blocks": BudgetBlocks,
    "access_token": SharedAccessToken,
    "sandbox": SharedSandboxRecord,
    "sandbox_summary": SandboxSummary,
    "task": SharedTaskRecord,
}
