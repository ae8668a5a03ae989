"""What a worker says of its agent. Names and fields are the predecessor's, so that its readers understand ours."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.base import ArtifactRef, EventData
from sandherd.contracts.quantities import Attempt, Count, MicroDollars, Milliseconds, Moment, Seconds, Whole

Json = dict[str, Any]


class AgentEvent(EventData):
    """Said by the worker in one sandbox, about its agent."""

    turn: Count = 0
    artifacts: dict[str, ArtifactRef] | None = None
    """What was too large for this event: whole, by the place where its beginning stands (`input.content`)."""


class AgentStarted(AgentEvent):
    """The worker is up and starts its agent."""

    type: ClassVar[str] = "agent.started"
    counts_as_work: ClassVar[bool] = False
    timestamp: Moment
    sdk: str
    """The harness: `command`, `claude`, `openhands`, `acp`."""
    harness_version: str | None = None
    worker_version: str | None = None
    model: str | None = None
    task: str
    task_description_length: Count
    ticket_title: str | None = None
    attempt: Attempt = 1
    is_resuming: bool = False
    resumed_session_id: str | None = None
    fork_session: bool = False


class AgentHeartbeat(AgentEvent):
    """The worker lives; said every 30 s from start to end, also while a tool runs."""

    type: ClassVar[str] = "agent.heartbeat"
    counts_as_work: ClassVar[bool] = False
    timestamp: Moment
    status: Literal["alive", "running", "waiting"] = "alive"
    event_count: Count = 0
    spool_depth: Count = 0
    """Events on the sandbox's disk that the broker has not acknowledged yet."""
    in_flight: Count = 0
    """Events on their way to the broker at this moment."""
    memory_bytes: Count | None = None


class AgentTurnStarted(AgentEvent):
    """The agent begins to think about an input."""

    type: ClassVar[str] = "agent.turn_started"
    prompt_preview: str | None = None


class AgentTurnCompleted(AgentEvent):
    """The agent has answered an input."""

    type: ClassVar[str] = "agent.turn_completed"
    duration_ms: Milliseconds | None = None
    stop_reason: str | None = None


class AgentSystemMessage(AgentEvent):
    """A system message of the agent's program."""

    type: ClassVar[str] = "agent.system_message"
    metadata: Json = Field(default_factory=dict)


class AgentUserMessage(AgentEvent):
    """What was said to the agent."""

    type: ClassVar[str] = "agent.user_message"
    content: str
    content_length: Count


class AgentAssistantMessage(AgentEvent):
    """The model has answered; the text itself is in `agent.message`."""

    type: ClassVar[str] = "agent.assistant_message"
    model: str | None = None
    stop_reason: str | None = None
    block_count: Count = 0


class AgentMessage(AgentEvent):
    """A text of the agent."""

    type: ClassVar[str] = "agent.message"
    content: str
    content_length: Count


class AgentThinking(AgentEvent):
    """A thought of the agent."""

    type: ClassVar[str] = "agent.thinking"
    content: str
    thinking_type: str | None = None


class AgentMessageInjected(AgentEvent):
    """A message has reached the agent. A nudge is not work of the agent and resets no rule."""

    type: ClassVar[str] = "agent.message_injected"
    counts_as_work: ClassVar[bool] = False
    message_type: str
    content: str
    content_length: Count
    sender_id: str | None = None
    message_id: str
    intervention_number: Count = 0


class AgentMessageSent(AgentEvent):
    """The agent says something to another agent."""

    type: ClassVar[str] = "agent.message_sent"
    recipient: str
    content: str
    message_id: str


class AgentInterrupted(AgentEvent):
    """A turn was stopped from outside; the worker goes on."""

    type: ClassVar[str] = "agent.interrupted"
    counts_as_work: ClassVar[bool] = False
    reason: str
    sender_id: str | None = None


class AgentWaiting(AgentEvent):
    """The agent has nothing to do and waits for a message."""

    type: ClassVar[str] = "agent.waiting"
    counts_as_work: ClassVar[bool] = False
    message: str = ""


class AgentUsage(AgentEvent):
    """What a turn cost. Money is the difference since the last one, never a running total."""

    type: ClassVar[str] = "agent.usage"
    model: str | None = None
    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_read_tokens: Count = 0
    cache_write_tokens: Count = 0
    cost_micro_usd: MicroDollars = 0


class AgentError(AgentEvent):
    """Something went wrong; the attempt goes on."""

    type: ClassVar[str] = "agent.error"
    counts_as_work: ClassVar[bool] = False
    error: str
    phase: str | None = None
    traceback: str | None = None
    message_type: str | None = None
    """Of the message that could not be handled, if it was one."""
    content_length: Count | None = None


class AgentStreamError(AgentEvent):
    """The agent's program broke off."""

    type: ClassVar[str] = "agent.stream_error"
    counts_as_work: ClassVar[bool] = False
    error: str
    error_type: Literal["sigkill", "command_failed", "stream_init", "unknown"] = "unknown"
    final_output_length: Count = 0


class Outcome(AgentEvent):
    """What both ends of an attempt have in common."""

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


class AgentCompleted(Outcome):
    """The agent has done its task. There is one end per attempt; what comes later changes no state."""

    type: ClassVar[str] = "agent.completed"
    terminal: ClassVar[bool] = True
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
    """The agent has not done its task."""

    type: ClassVar[str] = "agent.failed"
    terminal: ClassVar[bool] = True
    success: Literal[False] = False
    error: str
    error_type: Literal[
        "exit_status", "signal", "out_of_memory", "start", "model_refused", "model_unavailable", "limit_reached",
        "worker_lost", "stopped", "internal",
    ]  # fmt: skip
    signal: Whole | None = None
    memory_peak_bytes: Count | None = None
    """The most that its sandbox has held at once, where that is measured."""
    memory_limit_bytes: Count | None = None


class AgentShutdown(AgentEvent):
    """The worker's last word. What its source has said is whole if `sequence` of this event was reached."""

    type: ClassVar[str] = "agent.shutdown"
    counts_as_work: ClassVar[bool] = False
    reason: str
    total_turns: Count = 0
    timestamp: Moment
