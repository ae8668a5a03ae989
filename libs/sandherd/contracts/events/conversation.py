"""Events about messages: what the agent's program, its model, its users and other agents write to each other."""

from typing import ClassVar, Literal

from pydantic import Field

from sandherd.contracts.events.agent import AgentAction, AgentEvent, Json
from sandherd.contracts.events.base import Emitter, Tone
from sandherd.contracts.events.summaries import short_fields
from sandherd.contracts.model import Count


class AgentSystemMessage(AgentEvent):
    """A system message of the agent's program."""

    type: ClassVar[str] = "agent.system_message"
    emitted_by: ClassVar[Emitter] = "agent"
    metadata: Json = Field(default_factory=dict)

    def summarize(self) -> str:
        return short_fields(self.metadata)


class AgentUserMessage(AgentEvent):
    """An input to the agent."""

    type: ClassVar[str] = "agent.user_message"
    emitted_by: ClassVar[Emitter] = "agent"
    tone: ClassVar[Tone | None] = "input"
    symbol: ClassVar[str | None] = "«"
    content: str
    content_length: Count

    def summarize(self) -> str:
        return self.content


class AgentAssistantMessage(AgentAction):
    """The model has responded; the text itself is in `agent.message`."""

    type: ClassVar[str] = "agent.assistant_message"
    emitted_by: ClassVar[Emitter] = "agent"
    model: str | None = None
    stop_reason: str | None = None
    block_count: Count = 0


class AgentMessage(AgentAction):
    """Text output of the agent."""

    type: ClassVar[str] = "agent.message"
    emitted_by: ClassVar[Emitter] = "agent"
    tone: ClassVar[Tone | None] = "output"
    symbol: ClassVar[str | None] = "»"
    content: str
    content_length: Count

    def summarize(self) -> str:
        return self.content


class AgentThinking(AgentAction):
    """Reasoning output of the agent."""

    type: ClassVar[str] = "agent.thinking"
    emitted_by: ClassVar[Emitter] = "agent"
    tone: ClassVar[Tone | None] = "background"
    symbol: ClassVar[str | None] = "…"
    content: str
    thinking_type: str | None = None

    def summarize(self) -> str:
        return self.content


class AgentContextCompacted(AgentEvent):
    """The agent's program has replaced the older part of the model's context by a summary. It is not work."""

    type: ClassVar[str] = "agent.context_compacted"
    emitted_by: ClassVar[Emitter] = "agent"
    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "background"
    trigger: Literal["automatic", "requested"] | None = None
    """`automatic`: the context was too large; `requested`: by a message or a command. Absent if it is not known."""
    tokens_before: Count | None = None
    """Number of tokens in the context before; absent if the harness does not report it."""
    tokens_after: Count | None = None
    """Number of tokens in the context after; absent if the harness does not report it."""
    messages_removed: Count | None = None
    """Number of messages, calls and results that the summary replaces; absent if the harness does not report it."""


class AgentMessageInjected(AgentEvent):
    """A message was passed to the agent. It is not work of the agent and resets no rule."""

    type: ClassVar[str] = "agent.message_injected"
    counts_as_work: ClassVar[bool] = False
    tone: ClassVar[Tone | None] = "input"
    symbol: ClassVar[str | None] = "«"
    message_type: str
    content: str
    content_length: Count
    sender_id: str | None = None
    message_id: str
    intervention_number: Count = 0

    def summarize(self) -> str:
        return f"{self.message_type} from {self.sender_id or 'unknown sender'}: {self.content}"


class AgentMessageSent(AgentEvent):
    """The agent sends a message to another agent."""

    type: ClassVar[str] = "agent.message_sent"
    recipient: str
    content: str
    message_id: str
