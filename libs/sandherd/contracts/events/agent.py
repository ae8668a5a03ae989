"""Events of a worker about its agent.

Names and fields are those of the predecessor, so that consumers which were written for it work.
"""

from typing import Any, ClassVar, Literal

from sandherd.contracts.events.base import ArtifactRef, Emitter, EventData, Tone
from sandherd.contracts.events.summaries import elapsed, outcome
from sandherd.contracts.model import Attempt, Count, MicroDollars, Milliseconds, Moment, Seconds, Whole
from sandherd.plurals import pluralize

Json = dict[str, Any]
TaskKind = Literal["change", "docs", "research", "review"]
HeartbeatStatus = Literal["alive", "running", "waiting"]
TurnOrigin = Literal["task", "resume", "iteration", "user", "agent", "nudge", "system", "notice"]


class AgentEvent(EventData):
    """An event about the agent in a sandbox, published by the worker."""

    emitted_by: ClassVar[Emitter] = "worker"
    """Only the worker, unless a class allows others: services base decisions on these events."""
    turn: Count = 0
    artifacts: dict[str, ArtifactRef] | None = None
    """The complete values that were too large for the event, by the path of the truncated value (`input.content`)."""


class AgentAction(AgentEvent):
    """An action of the agent or of one of its sub-agents."""

    parent_tool_use_id: str | None = None
    """The call of the sub-agent that acts, as in `agent.subagent_invoked`. Absent if the agent itself acts, or if the
    harness does not report which sub-agent acts."""


class AgentStarted(AgentEvent):
    """The worker runs and starts its agent."""

    type: ClassVar[str] = "agent.started"
    counts_as_work: ClassVar[bool] = False
    measured: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "start"
    symbol: ClassVar[str | None] = "▶"
    timestamp: Moment
    sdk: str
    """The harness: `command`, `claude`, `openhands`, `acp`."""
    harness_version: str | None = None
    worker_version: str | None = None
    model: str | None = None
    task: str
    task_description_length: Count
    task_kind: TaskKind | None = None
    """The kind of work, as the submitter states it: `change` of code, `docs` only, or `research` and `review`, which
    need no change. Absent if none is stated."""
    work_tree: str | None = None
    """The absolute path of the work tree in the sandbox."""
    ticket_title: str | None = None
    attempt: Attempt = 1
    is_resuming: bool = False
    resumed_session_id: str | None = None
    fork_session: bool = False
    repository: str | None = None
    """The git repository that the task works on: its URL, or the label of a local repository."""
    base: str | None = None
    """The branch from which the sandbox's branch was created."""
    branch: str | None = None
    """The branch that the sandbox checks out."""

    def summarize(self) -> str:
        return f"{self.sdk}: {self.task}" if self.task else "a sandbox without a task"


class AgentHeartbeat(AgentEvent):
    """The worker is alive. Published every 30 s from start to end, also while a tool runs."""

    type: ClassVar[str] = "agent.heartbeat"
    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "routine"
    timestamp: Moment
    status: HeartbeatStatus = "alive"
    event_count: Count = 0
    spool_depth: Count = 0
    """Events in the spool on the sandbox's disk that the broker has not acknowledged yet."""
    in_flight: Count = 0
    """Events that are being published at this moment."""
    memory_bytes: Count | None = None

    def summarize(self) -> str:
        return f"{self.status}, {pluralize(self.event_count, 'event')}, {self.spool_depth} not yet acknowledged"


class AgentTurnStarted(AgentEvent):
    """The agent begins a turn: it processes an input."""

    type: ClassVar[str] = "agent.turn_started"
    emitted_by: ClassVar[Emitter] = "driver"
    prompt_preview: str | None = None
    origin: TurnOrigin | None = None
    """What began the turn: `task`, the text of the task; `resume`, that text in a resumed session; `iteration`, the
    next iteration of a continuous task; `user`, a message of a user; `agent`, a message of another agent; `nudge`, a
    message of the monitor; `system`, a system note; `notice`, a notice of the agent's own program, such as the end of a
    background task. If several messages began it: `user` if one of them is a user's, otherwise the origin of the first.
    Absent if it is not known."""

    def summarize(self) -> str:
        return f"turn {self.turn}: {self.prompt_preview or ''}"


class AgentTurnCompleted(AgentEvent):
    """The agent has ended a turn: it has responded to an input."""

    type: ClassVar[str] = "agent.turn_completed"
    emitted_by: ClassVar[Emitter] = "driver"
    measured: ClassVar[bool] = True
    duration_ms: Milliseconds | None = None
    stop_reason: str | None = None

    def summarize(self) -> str:
        return f"turn {self.turn} {elapsed(self.duration_ms)}".rstrip()


class AgentInterrupted(AgentEvent):
    """A turn was interrupted from outside; the worker keeps running."""

    type: ClassVar[str] = "agent.interrupted"
    counts_as_work: ClassVar[bool] = False
    reason: str
    sender_id: str | None = None


class AgentWaiting(AgentEvent):
    """The agent is idle and waits for a message."""

    type: ClassVar[str] = "agent.waiting"
    counts_as_work: ClassVar[bool] = False
    message: str = ""


class AgentUsage(AgentEvent):
    """What a turn used. The cost is the difference since the last `agent.usage`, never a running total."""

    type: ClassVar[str] = "agent.usage"
    emitted_by: ClassVar[Emitter] = "agent"
    measured: ClassVar[bool] = True
    model: str | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0

    def summarize(self) -> str:
        tokens = f"{self.input_tokens} tokens in, {self.output_tokens} out, {self.cost_micro_usd / 1e6:.4f} $"
        return f"{self.model}: {tokens}" if self.model else tokens


class AgentError(AgentEvent):
    """An error that does not end the attempt."""

    type: ClassVar[str] = "agent.error"
    emitted_by: ClassVar[Emitter] = "agent"
    counts_as_work: ClassVar[bool] = False
    counts_as_error: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    symbol: ClassVar[str | None] = "!"
    error: str
    phase: str | None = None
    traceback: str | None = None
    message_type: str | None = None
    """The type of the message that could not be handled, if the error is about a message."""
    content_length: Count | None = None

    def summarize(self) -> str:
        return self.error


class AgentStreamError(AgentEvent):
    """The agent's program stopped unexpectedly."""

    type: ClassVar[str] = "agent.stream_error"
    emitted_by: ClassVar[Emitter] = "driver"
    counts_as_work: ClassVar[bool] = False
    counts_as_error: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    error: str
    error_type: Literal["sigkill", "command_failed", "stream_init", "unknown"] = "unknown"
    final_output_length: Count = 0


class Outcome(AgentEvent):
    """The fields that both final events of an attempt have in common."""

    counts_as_work: ClassVar[bool] = False
    turns: Count = 0
    cost_micro_usd: MicroDollars = 0
    session_id: str | None = None
    stop_reason: str | None = None
    exit_code: Whole | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    final_output: str | None = None
    duration_seconds: Seconds | None = None
    files_changed: Count = 0

    def summarize(self) -> str:
        return outcome(getattr(self, "error", None), self.exit_code, self.duration_seconds, self.files_changed)


class AgentCompleted(Outcome):
    """The agent has completed its task. An attempt has one final event; a later one changes no state."""

    type: ClassVar[str] = "agent.completed"
    terminal: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "success"
    symbol: ClassVar[str | None] = "✓"
    success: Literal[True] = True
    branch_name: str | None = None
    agent_type: str | None = None
    validation_passed: bool | None = None
    tests_passed: bool | None = None
    code_committed: bool | None = None
    code_pushed: bool | None = None
    pr_created: bool | None = None
    pr_url: str | None = None
    pr_number: Count | None = None
    ci_status: str | None = None


class AgentFailed(Outcome):
    """The agent has not completed its task."""

    type: ClassVar[str] = "agent.failed"
    counts_as_error: ClassVar[bool] = True
    terminal: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "failure"
    symbol: ClassVar[str | None] = "✗"
    success: Literal[False] = False
    error: str
    error_type: Literal[
        "exit_status", "signal", "out_of_memory", "start", "model_refused", "model_unavailable", "limit_reached",
        "worker_lost", "stopped", "internal",
    ]  # fmt: skip
    signal: Whole | None = None
    memory_peak_bytes: Count | None = None
    """The peak memory of its sandbox, where that is measured."""
    memory_limit_bytes: Count | None = None


class AgentShutdown(AgentEvent):
    """The worker's last event. Its source is complete if no `sequence` up to this event's is missing."""

    type: ClassVar[str] = "agent.shutdown"
    counts_as_work: ClassVar[bool] = False
    closes_source: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "background"
    symbol: ClassVar[str | None] = "■"
    reason: str
    total_turns: Count = 0
    timestamp: Moment

    def summarize(self) -> str:
        return self.reason
