"""What an agent calls, its model, tools, sub-agents and skills, and what it does to files."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.agent import AgentEvent, Json
from sandherd.contracts.events.base import ArtifactRef
from sandherd.contracts.quantities import Count, MicroDollars, Milliseconds, Seconds


class AgentModelCallStarted(AgentEvent):
    """The model is asked; the call is in flight until it answers."""

    type: ClassVar[str] = "agent.model_call_started"
    opens: ClassVar[str | None] = "call_id"
    call_id: str


class AgentModelCallCompleted(AgentEvent):
    """The model answers, or nobody waits for it any more. From its first word on its answer is told as it comes."""

    type: ClassVar[str] = "agent.model_call_completed"
    closes: ClassVar[str | None] = "call_id"
    call_id: str
    duration_ms: Milliseconds | None = None


class AgentToolUse(AgentEvent):
    """The agent calls a tool; it is in flight until its result comes."""

    type: ClassVar[str] = "agent.tool_use"
    opens: ClassVar[str | None] = "tool_use_id"
    tool: str
    tool_use_id: str
    input: Json = Field(default_factory=dict)
    event_subtype: str | None = None
    """`program` for a call that is the agent's whole program, which may take as long as the sandbox may live."""


class AgentApprovalRequested(AgentEvent):
    """The agent waits for a person's leave."""

    type: ClassVar[str] = "agent.approval_requested"
    opens: ClassVar[str | None] = "approval_id"
    counts_as_work: ClassVar[bool] = False
    approval_id: str
    tool: str
    input: Json = Field(default_factory=dict)
    reason: str | None = None
    timeout_seconds: Seconds | None = None
    """How long it waits; without one it waits as long as its sandbox lives."""
    on_timeout: Literal["allow", "deny"] | None = None
    """What holds when nobody has answered by then."""


class AgentApprovalWithdrawn(AgentEvent):
    """The agent waits for this leave no more: its turn is over, or the agent itself while its worker goes on."""

    type: ClassVar[str] = "agent.approval_withdrawn"
    closes: ClassVar[str | None] = "approval_id"
    counts_as_work: ClassVar[bool] = False
    approval_id: str
    reason: str


class AgentToolCompleted(AgentEvent):
    """A tool has answered."""

    type: ClassVar[str] = "agent.tool_completed"
    closes: ClassVar[str | None] = "tool_use_id"
    tool: str
    tool_use_id: str | None = None
    tool_input: Json = Field(default_factory=dict)
    tool_response: Any = None
    duration_ms: Milliseconds | None = None


class AgentToolResult(AgentEvent):
    """What a tool's answer was, as the model is shown it; at most 5,000 characters of it."""

    type: ClassVar[str] = "agent.tool_result"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    result: str
    result_truncated: bool = False
    result_full_length: Count = 0
    is_error: bool = False


class AgentUserToolResult(AgentEvent):
    """A tool's answer as it came back in a user message."""

    type: ClassVar[str] = "agent.user_tool_result"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    result: str
    result_truncated: bool = False


class AgentSubagentInvoked(AgentEvent):
    """The agent calls a sub-agent."""

    type: ClassVar[str] = "agent.subagent_invoked"
    opens: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    subagent_type: str
    subagent_description: str | None = None
    subagent_prompt: str | None = None


class AgentSubagentCompleted(AgentEvent):
    """A sub-agent has answered."""

    type: ClassVar[str] = "agent.subagent_completed"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    subagent_type: str | None = None
    subagent_description: str | None = None
    subagent_result: Any = None
    subagent_usage: Json = Field(default_factory=dict)
    subagent_cost_micro_usd: MicroDollars | None = None
    subagent_duration_ms: Milliseconds | None = None


class AgentSkillInvoked(AgentEvent):
    """The agent calls a skill."""

    type: ClassVar[str] = "agent.skill_invoked"
    opens: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    skill_name: str


class AgentSkillCompleted(AgentEvent):
    """A skill has answered."""

    type: ClassVar[str] = "agent.skill_completed"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    skill_name: str


class AgentFileEdited(AgentEvent):
    """A file of the work tree has changed, whoever changed it."""

    type: ClassVar[str] = "agent.file_edited"
    tool_use_id: str | None = None
    file_path: str
    """Relative to the work tree, with forward slashes."""
    change_type: Literal["created", "modified", "deleted", "renamed"]
    previous_path: str | None = None
    binary: bool = False
    lines_added: Count = 0
    lines_removed: Count = 0
    diff_preview: str = ""
    full_diff: str | None = None
    full_diff_available: bool = False
    full_diff_size: Count = 0
    full_diff_ref: ArtifactRef | None = None
