"""A tool's result as text: for the event, and for the terminal."""

import json
from typing import Any, Final

MOST_SHOWN: Final = 5000
"""So many characters of a result are said; all of it is in the tool's response."""


def result_text(content: Any) -> str:
    """What the model is shown of a result, as one text."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return json.dumps(content, ensure_ascii=False, default=str)


def printed(response: Any) -> str:
    """What a command has printed, if the response is a command's."""
    if not isinstance(response, dict) or "stdout" not in response:
        return ""
    pieces = (str(response.get("stdout") or ""), str(response.get("stderr") or ""))
    return "".join(f"{piece.rstrip()}\n" for piece in pieces if piece.strip())


def _part(part: Any) -> str:
    if isinstance(part, dict):
        return str(part["text"]) if part.get("type") == "text" else f"[{part.get('type', 'something')}]"
    return str(part)
