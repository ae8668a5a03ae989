"""Making a line that the worker will read: whatever is in it, it is JSON, and not too long."""

import json
import math
from typing import Any, Final

LONGEST_LINE: Final = 1024 * 1024
"""The worker passes over a line that is longer."""
_ROOM: Final = LONGEST_LINE - 1024
_SHORTEST: Final = 256


def shorten(type: str, data: dict[str, Any]) -> bytes:
    """The line that says this, with its longest texts cut until it fits."""
    sane = _sane(data)
    line, longest = _line(type, sane), _ROOM
    while len(line) > _ROOM and longest > _SHORTEST:
        longest //= 8
        line = _line(type, _cut(sane, longest))
    if len(line) <= _ROOM:
        return line
    told = f"a {type} of {len(line)} bytes is too much for a line"
    return _line("agent.error", {"error": told, "phase": "driver"})


def _line(type: str, data: Any) -> bytes:
    return json.dumps({"type": type, "data": data}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _sane(value: Any) -> Any:
    """The value with what JSON has no word for as text."""
    if isinstance(value, dict):
        return {str(key): _sane(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sane(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _cut(value: Any, longest: int) -> Any:
    """The value with no text in it longer than this."""
    if isinstance(value, str) and len(value) > longest:
        return f"{value[:longest]}… [{len(value) - longest} more characters]"
    if isinstance(value, dict):
        return {key: _cut(item, longest) for key, item in value.items()}
    if isinstance(value, list):
        return [_cut(item, longest) for item in value]
    return value
