"""The possible responses of a scripted OpenAI model, and their form: one JSON document."""

import asyncio
import json
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

_NUMBERS: Final = count(1)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The usage in a response. Cached tokens are included in the prompt's, as in that protocol."""

    prompt_tokens: int = 100
    completion_tokens: int = 20
    cached_tokens: int = 0

    def document(self) -> dict[str, Any]:
        """The document in the response."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


@dataclass(frozen=True)
class Call:
    """A tool call; an input that is a text is sent unchanged, whether it is JSON or not."""

    tool: str
    input: dict[str, Any] | str
    id: str = field(default_factory=lambda: f"call_{next(_NUMBERS):06}")

    def document(self) -> dict[str, Any]:
        """The document in the message."""
        arguments = self.input if isinstance(self.input, str) else json.dumps(self.input)
        return {"id": self.id, "type": "function", "function": {"name": self.tool, "arguments": arguments}}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error of the model's server."""

    status: int
    message: str = "scripted"
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The JSON document of the error."""
        return {"error": {"message": self.message, "type": "scripted", "param": None, "code": None}}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One message of the model. With a gate it is sent once the gate is set."""

    text: str | None = None
    thinking: str | None = None
    calls: tuple[Call, ...] = ()
    usage: Usage = field(default_factory=Usage)
    gate: asyncio.Event | None = None

    def document(self, model: str) -> dict[str, Any]:
        """The document of the whole response."""
        message: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thinking is not None:
            message["reasoning_content"] = self.thinking
        if self.calls:
            message["tool_calls"] = [call.document() for call in self.calls]
        return {
            "id": f"chatcmpl-{next(_NUMBERS):06}",
            "object": "chat.completion",
            "created": 1_800_000_000,
            "model": model,
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if self.calls else "stop"}],
            "usage": self.usage.document(),
        }


def writes(text: str, *, gate: asyncio.Event | None = None, usage: Usage | None = None) -> Answer:
    """A response with one text."""
    return Answer(text=text, gate=gate, usage=usage or Usage())


def calls(tool: str, *, usage: Usage | None = None, **input: Any) -> Answer:
    """A response with one tool call."""
    return Answer(calls=(Call(tool, input),), usage=usage or Usage())
