"""The protocol's content blocks as text."""

import json
from typing import Any, Final

MAX_RESULT_LENGTH: Final = 5_000
"""Maximum characters of a tool's result in `agent.tool_result`."""

_MAX_VENDOR_TEXT_LENGTH: Final = 200

Json = dict[str, Any]


def vendor_text(document: Json, name: str) -> str | None:
    """A text in an agent's own part of `_meta`, such as `{"claudeCode": {"parentToolUseId": …}}`."""
    for vendor in (document.get("_meta") or {}).values():
        if isinstance(vendor, dict) and isinstance(text := vendor.get(name), str) and text:
            return text[:_MAX_VENDOR_TEXT_LENGTH]
    return None


def parent_call(document: Json) -> str | None:
    """The id of the call that started the sub-agent of this update; None for the main agent.

    The protocol has no field for it; Claude's agent reports it.
    """
    return vendor_text(document, "parentToolUseId")


def block_text(block: Json) -> str:
    """A content block as text; for other content, a description."""
    match block.get("type"):
        case "text":
            return str(block.get("text", ""))
        case "resource_link":
            return f"[{block.get('uri', '')}]"
        case "resource":
            resource = block.get("resource") or {}
            return str(resource.get("text") or f"[{resource.get('uri', 'a resource')}]")
        case kind:
            return f"[{kind}, {block.get('mimeType', 'of no type')}, {len(str(block.get('data', '')))} characters]"


def tool_text(call: Json) -> str:
    """A tool's result as text: the text for the model if the agent reports it, else the text for users."""
    raw = call.get("rawOutput")
    if isinstance(raw, str) and raw:
        return raw
    texts = [text for part in call.get("content") or () if (text := _part_text(part))]
    return "\n".join(texts) if texts or raw is None else json.dumps(raw, ensure_ascii=False)


def _part_text(part: Json) -> str:
    match part.get("type"):
        case "content":
            return block_text(part.get("content") or {})
        case "diff":
            return f"changed {part.get('path', '')}"
        case _:
            return ""
