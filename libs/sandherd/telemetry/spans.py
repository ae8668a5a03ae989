"""The table of all spans: name, kind, meaning and attributes. Ids are in attributes, never in names.

Spans of agents follow OpenTelemetry's conventions for generative AI (`gen_ai.*`).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

MAX_VALUE_LENGTH: Final = 256
"""Maximum number of characters of an attribute. Spans wait in memory, and agents choose some of the values."""
_PLACEHOLDER: Final = re.compile(r" ?\{([a-z_.]+)\}")


@dataclass(frozen=True, eq=False)
class Attribute:
    """An attribute of spans. Attributes are compared by identity."""

    name: str
    meaning: str


class SpanKind(StrEnum):
    """The kind of a span, as in OpenTelemetry."""

    INTERNAL = "internal"
    SERVER = "server"
    CONSUMER = "consumer"
    CLIENT = "client"


Value = str | int | float | bool
Values = Mapping[Attribute, Value | None]


@dataclass(frozen=True, eq=False)
class SpanRow:
    """One row of the table. In the name, `{…}` stands for an attribute's value. It is omitted if there is no value."""

    name: str
    by: str
    """The service that exports the span."""
    kind: SpanKind
    meaning: str
    attributes: tuple[Attribute, ...]

    def named(self, values: Values) -> str:
        """The name of a span with these attributes."""
        values_by_name = {attribute.name: value for attribute, value in values.items()}

        def filled(match: re.Match[str]) -> str:
            value = values_by_name.get(match[1])
            return "" if value is None else f" {_shortened(value)}"

        return _PLACEHOLDER.sub(filled, self.name)

    def attributes_of(self, values: Values) -> dict[str, Value]:
        """The attributes as they are exported. Raises `KeyError` for an attribute that is not in the table."""
        for attribute in values:
            if attribute not in self.attributes:
                raise KeyError(f"a span {self.name!r} has no {attribute.name}")
        return {attribute.name: _shortened(value) for attribute, value in values.items() if value is not None}


def _shortened(value: Value) -> Value:
    return value[:MAX_VALUE_LENGTH] if isinstance(value, str) else value


PROJECT: Final = Attribute("sandherd.project", "The project.")
TASK_ID: Final = Attribute("sandherd.task", "The task.")
SANDBOX_ID: Final = Attribute("sandherd.sandbox", "The sandbox.")
ATTEMPT: Final = Attribute("sandherd.attempt", "The number of the attempt at the task, from 1.")
RUNTIME: Final = Attribute("sandherd.runtime", "The runtime of the sandbox.")
PRIORITY: Final = Attribute("sandherd.priority", "The task's priority.")
STATE: Final = Attribute("sandherd.state", "The final state.")
TYPE: Final = Attribute("sandherd.type", "The type of the event, command or request.")
STEP: Final = Attribute("sandherd.step", "The step of the sandbox's lifecycle.")
MESSAGE_ID: Final = Attribute("sandherd.message", "The message.")
OUTCOME: Final = Attribute("sandherd.outcome", "The outcome.")
ERROR_TYPE: Final = Attribute(
    "error.type",
    "Why it failed: an error type, the code of a refusal, or the class of an exception; absent if it did not.",
)

OPERATION: Final = Attribute("gen_ai.operation.name", "`invoke_agent`, `chat` or `execute_tool`.")
AGENT_NAME: Final = Attribute("gen_ai.agent.name", "The harness: `command`, `claude`, `openhands`, `acp`.")
AGENT_ID: Final = Attribute("gen_ai.agent.id", "The sandbox that the agent works in.")
CONVERSATION: Final = Attribute("gen_ai.conversation.id", "The agent's session.")
PROVIDER: Final = Attribute("gen_ai.provider.name", "The provider of the model, where that is known.")
MODEL: Final = Attribute("gen_ai.request.model", "The model, by the agent's name of it.")
INPUT_TOKENS: Final = Attribute("gen_ai.usage.input_tokens", "Input tokens, without those of the cache.")
OUTPUT_TOKENS: Final = Attribute("gen_ai.usage.output_tokens", "Output tokens.")
CACHE_READ: Final = Attribute("gen_ai.usage.cache_read.input_tokens", "Tokens that were read from the cache.")
CACHE_WRITTEN: Final = Attribute("gen_ai.usage.cache_creation.input_tokens", "Tokens that were written to the cache.")
TOOL_NAME: Final = Attribute("gen_ai.tool.name", "The tool.")
TOOL_CALL: Final = Attribute("gen_ai.tool.call.id", "The id of the tool call.")

_IN: Final = (PROJECT, TASK_ID, SANDBOX_ID)
_I, _S, _C = SpanKind.INTERNAL, SpanKind.SERVER, SpanKind.CONSUMER

TASK: Final = SpanRow(
    "task",
    "spawner",
    _I,
    "A task from its submission to its end, with all its attempts. If a user retries the task, a span within it from "
    "the retry to the next end.",
    (*_IN, AGENT_NAME, PRIORITY, ATTEMPT, STATE, ERROR_TYPE),
)
SANDBOX: Final = SpanRow(
    "sandbox",
    "spawner",
    _I,
    "A sandbox from its request to its end.",
    (*_IN, RUNTIME, STATE, ERROR_TYPE),
)
SANDBOX_STEP: Final = SpanRow(
    "sandbox {sandherd.step}", "spawner", _I, "One step of a sandbox's lifecycle.", (*_IN, RUNTIME, STEP, ERROR_TYPE)
)
AGENT: Final = SpanRow(
    "invoke_agent {gen_ai.agent.name}",
    "spawner",
    SpanKind.CLIENT,
    "An attempt: an agent from its start to its end.",
    (
        *(*_IN, ATTEMPT, OUTCOME, ERROR_TYPE, OPERATION, AGENT_NAME, AGENT_ID, CONVERSATION),
        *(INPUT_TOKENS, OUTPUT_TOKENS, CACHE_READ, CACHE_WRITTEN),
    ),
)
HANDLE: Final = SpanRow(
    "handle {sandherd.type}",
    "spawner",
    _C,
    "A command, or an event of an agent, is handled.",
    (*_IN, TYPE, ERROR_TYPE),
)
ANSWER: Final = SpanRow(
    "answer {sandherd.type}",
    "every service",
    _S,
    "A request is handled: a share of them, and those that are slow or fail in the service.",
    (TYPE, ERROR_TYPE),
)
STORE: Final = SpanRow(
    "store {sandherd.type}",
    "event-ingest",
    _C,
    "One of the most important events is stored; a span for every event would cost more than storing it.",
    (*_IN, TYPE, ERROR_TYPE),
)
CHAT: Final = SpanRow(
    "chat {gen_ai.request.model}",
    "event-ingest",
    SpanKind.CLIENT,
    "An agent calls its model, from the request to the start of the response.",
    (PROJECT, SANDBOX_ID, OPERATION, AGENT_NAME, MODEL, PROVIDER),
)
TOOL: Final = SpanRow(
    "execute_tool {gen_ai.tool.name}",
    "event-ingest",
    _I,
    "An agent uses a tool.",
    (PROJECT, SANDBOX_ID, OPERATION, AGENT_NAME, TOOL_NAME, TOOL_CALL, ERROR_TYPE),
)
DELIVER: Final = SpanRow(
    "deliver message",
    "message-relay",
    _I,
    "A message to an agent, from the sender's command or event to the worker's receipt.",
    (PROJECT, SANDBOX_ID, MESSAGE_ID),
)

SPANS: Final = (TASK, SANDBOX, SANDBOX_STEP, AGENT, HANDLE, ANSWER, STORE, CHAT, TOOL, DELIVER)
