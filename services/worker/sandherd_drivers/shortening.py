"""Making a line that the worker will read: whatever is in it, it is JSON, and not too long."""

import json
import math
from typing import Any, Final

LONGEST_LINE: Final = 1024 * 1024
"""The worker passes over a line that is longer."""
_ROOM: Final = LONGEST_LINE - 1024
_SHORTEST: Final = 256
_DEEPEST: Final = 60
_TOO_DEEP: Final = "[nested too deeply to be shown]"


def shorten(type: str, data: dict[str, Any]) -> bytes:
    """The line that says this, or that it is too much for one."""
    return fitting(type, data) or _line("agent.error", {"error": f"a {type} is too much for a line", "phase": "driver"})


def fitting(type: str, data: dict[str, Any]) -> bytes | None:
    """The line that says this, with its longest texts cut until it fits; None if even so it doesn't."""
    sane = _sane(data, _DEEPEST)
    line, longest = _line(type, sane), _ROOM
    while len(line) > _ROOM and longest > _SHORTEST:
        longest //= 8
        line = _line(type, _cut(sane, longest))
    return line if len(line) <= _ROOM else None


def _line(type: str, data: Any) -> bytes:
    return json.dumps({"type": type, "data": data}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _sane(value: Any, deepest: int) -> Any:
    """The value with what JSON has no word for as text, and what is nested too deeply for its readers left out."""
    if deepest == 0 and isinstance(value, dict | list | tuple | set | frozenset):
        return _TOO_DEEP
    if isinstance(value, dict):
        return {str(key): _sane(item, deepest - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_sane(item, deepest - 1) for item in value]
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
