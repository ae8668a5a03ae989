"""Parts of the one-line summaries of events. Programs that show the text remove its control characters."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from sandherd.plurals import pluralize

_MAX_VALUE_LENGTH: Final = 80


def local_time(at: datetime) -> str:
    """A time of day in local time, with its offset."""
    return at.astimezone().timetz().isoformat("seconds")


def elapsed(milliseconds: float | None) -> str:
    """A duration as `in 12 ms`; empty if it is unknown or zero."""
    return f"in {milliseconds:.0f} ms" if milliseconds else ""


def tool_call(tool: str, tool_input: Any) -> str:
    """A tool and its input as text; if the input has only one field, the value of that field."""
    text = tool_input if isinstance(tool_input, str) else _only_value(tool_input)
    return f"{tool}: {text}" if text else tool


def outcome(error: str | None, exit_code: int | None, seconds: float | None, files_changed: int) -> str:
    """How an agent ended. The exit status is omitted if the error states it.

    The error may end with a remedy, so the other facts are in parentheses after it.
    """
    status = None if exit_code is None or _states(error, exit_code) else f"exit status {exit_code}"
    duration = None if seconds is None else f"{seconds:.1f} s"
    changes = f"{pluralize(files_changed, 'file')} changed" if files_changed else None
    facts = ", ".join(part for part in (status, duration, changes) if part)
    return f"{error} ({facts})" if error and facts else error or facts


def plain_fields(data: Mapping[str, Any]) -> str:
    """All fields except lists and objects, as `name=value`."""
    return " ".join(f"{name}={_rounded(value)}" for name, value in data.items() if not isinstance(value, dict | list))


def short_fields(data: Mapping[str, Any]) -> str:
    """The fields with a number or a short text, as `name=value`."""
    return " ".join(f"{name}={_rounded(value)}" for name, value in data.items() if _is_short(value))


def _only_value(tool_input: Any) -> str:
    if isinstance(tool_input, dict) and len(tool_input) == 1:
        value = next(iter(tool_input.values()))
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return json.dumps(tool_input, ensure_ascii=False) if tool_input else ""


def _states(error: str | None, code: int) -> bool:
    return error is not None and re.search(rf"\bstatus {code}\b", error) is not None


def _is_short(value: Any) -> bool:
    return isinstance(value, int | float) or (isinstance(value, str) and len(value) <= _MAX_VALUE_LENGTH)


def _rounded(value: Any) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)
