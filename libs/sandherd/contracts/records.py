"""Records in key-value buckets that services other than their owner read, or all replicas of their owner.

The spawner writes `tasks`, `sandboxes` and `tokens`, with more fields; the monitor writes `summaries` and `budgets`. A
field with its default value is absent. Others read a record by `bus.kv.read_record`. Examples: `golden/v1/records`.
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
    """The part of a record that other services read. Unless stated otherwise, its key is `<project>.<name>`."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    bucket: ClassVar[str]
    """The bucket that holds it."""


class SharedSandboxRecord(SharedRecord):
    """A sandbox: its state, and the attempt of a task that runs in it."""

    bucket: ClassVar[str] = "sandboxes"

    state: SandboxState = SandboxState.REQUESTED
    task: SafeName | None = None
    """None: the sandbox was requested without a task, and no agent runs in it."""
    attempt: int = 1
    unit: SafeName | None = None
    """The runtime's name of the sandbox, if it is another one: a sandbox from the pool was created under another name.
    """
    reason: str | None = None
    """Why it was ended."""
    expires_at: AwareDatetime | None = None
    """When its time to live ends."""


class SharedTaskRecord(SharedRecord):
    """A task: its state, and the sandboxes of its attempts."""

    bucket: ClassVar[str] = "tasks"

    state: TaskState = TaskState.PENDING
    life: str
    """32 hexadecimal digits, derived from the command that submitted the task: distinguishes tasks with the same name.
    """
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
"""Maximum number of edited files in a summary. If there are more, it has those that were edited last."""
MAX_RANGES: Final = 20
"""Maximum number of ranges of lines of an edited file."""
MAX_TITLE: Final = 500
MAX_STEERINGS: Final = 20

SummaryState = Literal["running", "waiting", "paused", "finished", "ended"]
LineRange = tuple[Count, Count]
"""The first and the last line, counted from 1, in the file after the change."""


class SummaryPart(Model):
    """A part of a summary. Unknown fields are ignored, so that summaries of newer monitors can be read."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class SandboxUsage(SummaryPart):
    """What a sandbox has used, in total. A total that the harness does not report is 0: see `metered` and `priced`."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0
    metered: bool = False
    """Whether the harness has reported tokens or costs."""
    priced: bool = False
    """Whether the harness has reported costs. If not, the cost is unknown, not zero."""
    unmetered_turns: Count = 0
    """Number of ended turns for which the harness reported neither tokens nor costs."""
    implausible: Count = 0
    """Number of reports of usage that were not counted because no turn can use as much."""
    wall_seconds: Seconds = 0
    """How long the agent has worked until `updated_at` of the summary, without pauses. If the state is `running` or
    `waiting`, add the time since then."""

    @property
    def tokens(self) -> int:
        """The sum of all kinds of tokens."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens


class Edit(SummaryPart):
    """A file that a sandbox has edited."""

    path: str
    """Relative to the work tree, with forward slashes."""
    content_sha256: Digest | None = None
    """The `content_sha256` of the last `agent.file_edited` event about the file."""
    ranges: Annotated[tuple[LineRange, ...], Field(max_length=MAX_RANGES)] = ()
    """The changed lines, from the diffs of all edits of the file. If there are more ranges than the maximum, the
    nearest ones are merged. Empty if there is no diff, for example of a binary file. A later edit may have moved the
    lines of an earlier one."""
    at: Moment
    """When the file was last edited, by the broker's clock, in whole seconds."""
    count: Count = 1
    """How often the file was edited."""


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
    """When the agent received the message of the intervention, or continued after its pause."""
    outcome: InterventionOutcome | None = None
    """None: the outcome is not known yet."""
    outcome_at: Moment | None = None
    approval_id: str | None = None
    """The approval that a pause has requested."""


class SandboxSummary(SharedRecord):
    """What the monitor knows of a sandbox from its events. It is written at most every two seconds, while it changes.

    The totals are those of this sandbox, that is, of one attempt. They never decrease. A reader ignores a summary if it
    has read one with a higher `sequence`. The summary of an ended sandbox has no edits, and is deleted after a week.
    """

    bucket: ClassVar[str] = "summaries"

    project: SafeName
    sandbox: SafeName
    task: SafeName | None = None
    """None: the sandbox runs no task, or no event of its worker was received yet."""
    attempt: Attempt = 1
    harness: str | None = None
    repository: str | None = None
    """The git repository that the sandbox works on: its URL, or the label of a local repository."""
    base: str | None = None
    branch: str | None = None
    title: Annotated[str, Field(max_length=MAX_TITLE)] = ""
    """The beginning of the task's text."""
    task_kind: TaskKind | None = None
    started_at: Moment
    """When the sandbox's first event was stored; all times are the broker's."""
    updated_at: Moment
    """When the last event of this summary was stored."""
    sequence: Count
    """The stream sequence of the last event of this summary."""
    state: SummaryState = "running"
    """`waiting`: for an approval or a message; `finished`: its agent has ended; `ended`: the sandbox has ended."""
    turns: Count = 0
    """Number of ended turns."""
    tool_calls: Count = 0
    """Number of ended tool calls."""
    errors: Count = 0
    """Number of errors of the agent, as statistics count them, and of failed tool calls."""
    spending: SandboxUsage = SandboxUsage()
    edits: Annotated[tuple[Edit, ...], Field(max_length=MAX_EDITS)] = ()
    """The edited files; the last edited one is at the end."""
    findings: tuple[OpenFinding, ...] = ()
    interventions: Count = 0
    """How often the monitor has intervened."""
    steerings: Annotated[tuple[SteeringSummary, ...], Field(max_length=MAX_STEERINGS)] = ()
    """The last interventions of the guardian, oldest first."""
    budget: BudgetLimits | None = None
    """The budget of the task, from its spec or its profile."""


AccessRole = Literal["read", "work", "approve", "operate"]
"""What the holder of an access token may do. Each role also permits what the roles before it permit."""
TokenKind = Literal["token", "session", "code"]
"""`token` is sent by programs in a header, `session` by a browser in its cookie; a `code` creates one session."""


class SharedAccessToken(SharedRecord):
    """An access token of the HTTP API, a browser's session, or a code that creates one.

    The key is `<project>.<SHA-256 of its text, as 64 hexadecimal digits>`.
    """

    bucket: ClassVar[str] = "tokens"

    project: SafeName
    token: SafeName
    """The name of the token."""
    role: AccessRole
    expires_at: AwareDatetime
    kind: TokenKind = "token"
    user: str | None = None
    """The user of a session, for the fields of commands that name the user who issued them. None for an access token,
    which is named itself."""


class BudgetBlocks(SharedRecord):
    """The projects that are over budget: the spawner starts none of their tasks. The key is `fleet.blocked`."""

    bucket: ClassVar[str] = "budgets"

    herd: str | None = None
    """Why no task of any project is started; None if the herd is not over budget."""
    projects: dict[SafeName, str] = Field(default_factory=dict)
    """For each project that is over budget, why none of its tasks is started."""


RECORDS: dict[str, type[SharedRecord]] = {
    "budget_blocks": BudgetBlocks,
    "access_token": SharedAccessToken,
    "sandbox": SharedSandboxRecord,
    "sandbox_summary": SandboxSummary,
    "task": SharedTaskRecord,
}
