"""Events about what an agent calls (its model, tools, sub-agents, skills) and what it changes in files."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.agent import AgentAction, AgentEvent, Json
from sandherd.contracts.events.base import ArtifactRef, Digest, Emitter, Tone
from sandherd.contracts.events.call_facts import CallEnd, CheckKind
from sandherd.contracts.events.summaries import elapsed, tool_call
from sandherd.contracts.model import Count, MicroDollars, Milliseconds, Seconds


class AgentModelCallStarted(AgentEvent):
    """The agent calls its model; the call is in flight until the model responds."""

    type: ClassVar[str] = "agent.model_call_started"
    emitted_by: ClassVar[Emitter] = "agent"
    opens: ClassVar[str | None] = "call_id"
    call_id: str

    def summarize(self) -> str:
        return ""


class AgentModelCallCompleted(AgentEvent):
    """The model begins to respond, or no call waits for a response any more. Other events contain the response."""

    type: ClassVar[str] = "agent.model_call_completed"
    emitted_by: ClassVar[Emitter] = "agent"
    closes: ClassVar[str | None] = "call_id"
    measured: ClassVar[bool] = True
    call_id: str
    duration_ms: Milliseconds | None = None

    def summarize(self) -> str:
        return elapsed(self.duration_ms)


class AgentToolUse(AgentAction):
    """The agent calls a tool; the call is in flight until its result arrives."""

    type: ClassVar[str] = "agent.tool_use"
    emitted_by: ClassVar[Emitter] = "agent"
    opens: ClassVar[str | None] = "tool_use_id"
    measured: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "action"
    symbol: ClassVar[str | None] = "⚙"
    tool: str
    tool_use_id: str
    input: Json = Field(default_factory=dict)
    event_subtype: str | None = None
    """`program` for a call that is the agent's entire program, and may take as long as the sandbox may live."""
    check: CheckKind | None = None
    """What the call checks, if its command is known to check the work: `test`, `lint`, `types` or `build`. If it checks
    several, the first in the order `test`, `build`, `types`, `lint`. The worker derives it from the command's
    arguments, also after `cd x &&`, `env`, `uv run`, `npx` or `python -m`."""

    def summarize(self) -> str:
        return tool_call(self.tool, self.input)


class AgentApprovalRequested(AgentEvent):
    """The agent requests an approval and waits for it."""

    type: ClassVar[str] = "agent.approval_requested"
    opens: ClassVar[str | None] = "approval_id"
    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "attention"
    approval_id: str
    """The id of the approval, unique in its sandbox: 1 to 128 characters, none of them a control character. With an
    invalid id, the event is a dead letter of message-relay, and no user can answer it."""
    tool: str
    input: Json = Field(default_factory=dict)
    reason: str | None = None
    timeout_seconds: Seconds | None = None
    """How long the agent waits for an answer; None: as long as its sandbox lives."""
    on_timeout: Literal["allow", "deny"] | None = None
    """The decision if no user has answered by then. The worker applies it, by its own timer."""

    def summarize(self) -> str:
        return f"{self.approval_id}: {tool_call(self.tool, self.input)}"


class AgentApprovalWithdrawn(AgentEvent):
    """The agent no longer waits for this approval: its turn ended, or the agent ended while its worker runs on."""

    type: ClassVar[str] = "agent.approval_withdrawn"
    closes: ClassVar[str | None] = "approval_id"
    counts_as_work: ClassVar[bool] = False
    approval_id: str
    reason: str

    def summarize(self) -> str:
        return f"{self.approval_id}: {self.reason}"


class AgentToolCompleted(CallEnd):
    """A tool call has completed."""

    type: ClassVar[str] = "agent.tool_completed"
    emitted_by: ClassVar[Emitter] = "agent"
    closes: ClassVar[str | None] = "tool_use_id"
    measured: ClassVar[bool] = True
    tone: ClassVar[Tone | None] = "action"
    tool: str
    tool_use_id: str | None = None
    tool_input: Json = Field(default_factory=dict)
    tool_response: Any = None
    duration_ms: Milliseconds | None = None

    def summarize(self) -> str:
        return f"{self.tool} {elapsed(self.duration_ms)}".rstrip()


class AgentToolResult(CallEnd):
    """The result of a tool call as it is shown to the model, at most 5,000 characters of it."""

    type: ClassVar[str] = "agent.tool_result"
    emitted_by: ClassVar[Emitter] = "agent"
    closes: ClassVar[str | None] = "tool_use_id"
    measured: ClassVar[bool] = True
    tool_use_id: str
    result: str
    result_truncated: bool = False
    result_full_length: Count = 0
    is_error: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the call counts as an error: by its `outcome`, or by `is_error` if the harness reports no outcome."""
        return self.is_error if self.outcome is None else super().has_failed

    def summarize(self) -> str:
        return f"error: {self.result}" if self.is_error else self.result


class AgentUserToolResult(AgentEvent):
    """The result of a tool call as it was returned in a user message."""

    type: ClassVar[str] = "agent.user_tool_result"
    emitted_by: ClassVar[Emitter] = "agent"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    result: str
    result_truncated: bool = False


class AgentSubagentInvoked(AgentAction):
    """The agent calls a sub-agent."""

    type: ClassVar[str] = "agent.subagent_invoked"
    emitted_by: ClassVar[Emitter] = "agent"
    opens: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    subagent_type: str
    subagent_description: str | None = None
    subagent_prompt: str | None = None


class AgentSubagentCompleted(AgentEvent):
    """A call of a sub-agent has completed."""

    type: ClassVar[str] = "agent.subagent_completed"
    emitted_by: ClassVar[Emitter] = "agent"
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
    emitted_by: ClassVar[Emitter] = "agent"
    opens: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    skill_name: str


class AgentSkillCompleted(AgentEvent):
    """A call of a skill has completed."""

    type: ClassVar[str] = "agent.skill_completed"
    emitted_by: ClassVar[Emitter] = "agent"
    closes: ClassVar[str | None] = "tool_use_id"
    tool_use_id: str
    skill_name: str


class AgentFileEdited(AgentEvent):
    """A file of the work tree has changed, no matter what changed it."""

    type: ClassVar[str] = "agent.file_edited"
    tone: ClassVar[Tone | None] = "attention"
    symbol: ClassVar[str | None] = "✎"
    tool_use_id: str | None = None
    file_path: str
    """The path relative to the work tree, with forward slashes."""
    change_type: Literal["created", "modified", "deleted", "renamed"]
    previous_path: str | None = None
    binary: bool = False
    lines_added: Count = 0
    lines_removed: Count = 0
    content_sha256: Digest | None = None
    """The SHA-256 of the file's content after the change, in hexadecimal. If a file returns to an earlier content, it
    is the same again. For a link, it is the SHA-256 of its target; for a content with secrets, that of the content
    without them. Absent for a deleted file, and for a file of more than 512 KiB."""
    diff_preview: str = ""
    full_diff: str | None = None
    full_diff_available: bool = False
    full_diff_size: Count = 0
    full_diff_ref: ArtifactRef | None = None

    def summarize(self) -> str:
        name = f"{self.previous_path} → {self.file_path}" if self.previous_path else self.file_path
        return f"{self.change_type} {name} +{self.lines_added} −{self.lines_removed}"
