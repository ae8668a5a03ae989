"""Short stand-ins for what a tool was asked and what it answered, so that equal ones are known without keeping them."""

import hashlib
import json
from typing import Any, Final

_LENGTH: Final = 24


def digest(*parts: Any) -> str:
    """The same text for the same JSON values, whatever the order of their members; 24 hexadecimal digits."""
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:_LENGTH]


def call_digest(tool: str, given: Any) -> str:
    """Stands for a tool and its input."""
    return digest("call", tool, given)


def result_digest(result: Any) -> str:
    """Stands for a tool's answer."""
    return digest("result", result)
