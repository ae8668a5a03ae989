"""The protocol's content blocks as text."""

import json
from typing import Any, Final

MAX_RESULT_LENGTH: Final = 5_000
"""Maximum characters of a tool's result in `agent.tool_result`."""

Json = dict[str, Any]


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
    """A tool's result as text: the model's version if the agent reports it, else the users' version."""
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
