"""Encodes an event as a line that the worker accepts: JSON of limited length, whatever the values are."""

import json
import math
from typing import Any, Final

MAX_LINE_BYTES: Final = 1024 * 1024
"""The worker skips a longer line."""
_MAX_JSON_BYTES: Final = MAX_LINE_BYTES - 1024
_MIN_TEXT_LENGTH: Final = 256
"""A text is not cut again after it was cut to at most this many characters."""
_MAX_DEPTH: Final = 60
_TOO_DEEP: Final = "[nested too deeply to be shown]"


def encode_line(type: str, data: dict[str, Any]) -> bytes:
    """The line for this event, or for an error if it is too large."""
    return encode_if_it_fits(type, data) or _json_line(
        "agent.error", {"error": f"a {type} is too long for a line", "phase": "driver"}
    )


def encode_if_it_fits(type: str, data: dict[str, Any]) -> bytes | None:
    """The line for this event, with its longest texts cut until it fits; None if it can't be made to fit."""
    fields = _to_json_types(data, _MAX_DEPTH)
    line, max_length = _json_line(type, fields), _MAX_JSON_BYTES
    while len(line) > _MAX_JSON_BYTES and max_length > _MIN_TEXT_LENGTH:
        max_length //= 8
        line = _json_line(type, _truncate(fields, max_length))
    return line if len(line) <= _MAX_JSON_BYTES else None


def _json_line(type: str, data: Any) -> bytes:
    return json.dumps({"type": type, "data": data}, ensure_ascii=False).encode("utf-8", "replace") + b"\n"


def _to_json_types(value: Any, max_depth: int) -> Any:
    """The value as JSON types. Other objects become text; a note replaces what is nested deeper than `max_depth`."""
    if max_depth == 0 and isinstance(value, dict | list | tuple | set | frozenset):
        return _TOO_DEEP
    if isinstance(value, dict):
        return {str(key): _to_json_types(item, max_depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_to_json_types(item, max_depth - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | int | float):
        return value
    return str(value)


def _truncate(value: Any, max_length: int) -> Any:
    """The value with its texts cut to this length."""
    if isinstance(value, str) and len(value) > max_length:
        return f"{value[:max_length]}… [{len(value) - max_length} more characters]"
    if isinstance(value, dict):
        return {key: _truncate(item, max_length) for key, item in value.items()}
    if isinstance(value, list):
        return [_truncate(item, max_length) for item in value]
    return value
