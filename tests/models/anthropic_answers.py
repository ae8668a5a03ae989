"""The possible responses of a scripted Anthropic model, and their form: server-sent events."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

_NUMBERS: Final = count(1)
ERRORS: Final = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True, kw_only=True)
class Usage:
    """The usage in a response."""

    input_tokens: int = 100
    output_tokens: int = 20
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


@dataclass(frozen=True)
class Text:
    """A text block."""

    text: str


@dataclass(frozen=True)
class Thinking:
    """A thinking block."""

    text: str


@dataclass(frozen=True)
class Call:
    """A tool call."""

    tool: str
    input: dict[str, Any]
    id: str = field(default_factory=lambda: f"toolu_{next(_NUMBERS):06}")


Block = Text | Thinking | Call


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An error of the model's server."""

    status: int
    message: str = "scripted"
    headers: dict[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The JSON document of the error."""
        return {"type": "error", "error": {"type": ERRORS.get(self.status, "api_error"), "message": self.message}}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One message of the model. With a gate everything but its end is sent before the gate is set."""

    blocks: tuple[Block, ...]
    usage: Usage = field(default_factory=Usage)
    gate: asyncio.Event | None = None

    def stop_reason(self) -> str:
        """`tool_use` if a tool is called, else `end_turn`."""
        return "tool_use" if any(isinstance(block, Call) for block in self.blocks) else "end_turn"


def writes(text: str, *, gate: asyncio.Event | None = None, usage: Usage | None = None) -> Answer:
    """A response with one text."""
    return Answer(blocks=(Text(text),), gate=gate, usage=usage or Usage())


def calls(tool: str, *, usage: Usage | None = None, **input: Any) -> Answer:
    """A response with one tool call."""
    return Answer(blocks=(Call(tool, input),), usage=usage or Usage())


def beginning(answer: Answer, model: str) -> Iterator[bytes]:
    """The events of the response up to the last part of its last block."""
    figures = {**vars(answer.usage), "output_tokens": 1}
    message: dict[str, Any] = {
        "id": f"msg_{next(_NUMBERS):06}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": figures,
    }
    yield _event("message_start", message=message)
    for index, block in enumerate(answer.blocks):
        opened, deltas = _block(block)
        yield _event("content_block_start", index=index, content_block=opened)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        if answer.gate is None or index < len(answer.blocks) - 1:
            yield _event("content_block_stop", index=index)


def ending(answer: Answer) -> Iterator[bytes]:
    """The rest of the response."""
    if answer.gate is not None:
        yield _event("content_block_stop", index=len(answer.blocks) - 1)
    delta = {"stop_reason": answer.stop_reason(), "stop_sequence": None}
    yield _event("message_delta", delta=delta, usage=vars(answer.usage))
    yield _event("message_stop")


def document(answer: Answer, model: str) -> dict[str, Any]:
    """The whole response as one JSON document, for a client that requests no stream."""
    contents: list[dict[str, Any]] = []
    for block in answer.blocks:
        if isinstance(block, Call):
            contents.append({"type": "tool_use", "id": block.id, "name": block.tool, "input": block.input})
        elif isinstance(block, Text):
            contents.append({"type": "text", "text": block.text})
        else:
            contents.append({"type": "thinking", "thinking": block.text, "signature": "c2lnbmVk"})
    return {
        "id": f"msg_{next(_NUMBERS):06}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": contents,
        "stop_reason": answer.stop_reason(),
        "stop_sequence": None,
        "usage": vars(answer.usage),
    }


def _block(block: Block) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The document that opens a block, and those that are added to it."""
    if isinstance(block, Text):
        deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(block.text)]
        return {"type": "text", "text": ""}, deltas
    if isinstance(block, Thinking):
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in _pieces(block.text)]
        signed = {"type": "signature_delta", "signature": "c2lnbmVk"}
        return {"type": "thinking", "thinking": "", "signature": ""}, [*deltas, signed]
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(json.dumps(block.input))]
    return {"type": "tool_use", "id": block.id, "name": block.tool, "input": {}}, deltas


def _pieces(text: str) -> list[str]:
    """The text in a few parts, as in a model's stream."""
    size = max(1, -(-len(text) // 3))
    return [text[start : start + size] for start in range(0, len(text), size)]


def _event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()
