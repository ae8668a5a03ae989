"""What the protocol's content blocks say, as text."""

import json
from typing import Any, Final

LONGEST_RESULT: Final = 5_000
"""Of a tool's answer, as `agent.tool_result` has it."""

Json = dict[str, Any]


def block_text(block: Json) -> str:
    """A content block as text; what is no text is named."""
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
    """A tool's answer as text: what the model is given if the agent tells it, else what people are shown."""
    raw = call.get("rawOutput")
    if isinstance(raw, str) and raw:
        return raw
    shown = [text for part in call.get("content") or () if (text := _part_text(part))]
    return "\n".join(shown) if shown or raw is None else json.dumps(raw, ensure_ascii=False)


def _part_text(part: Json) -> str:
    match part.get("type"):
        case "content":
            return block_text(part.get("content") or {})
        case "diff":
            return f"changed {part.get('path', '')}"
        case _:
            return ""
