"""Whether an agent has to ask before it uses its tools."""

from collections.abc import Mapping
from typing import Any


def asks(harness: Mapping[str, Any]) -> bool:
    """Whether there is any tool that is not simply allowed. Which of them may be used is for the worker to decide."""
    approvals = harness.get("approvals") or {}
    return {approvals.get("otherwise", "allow"), *(approvals.get("tools") or {}).values()} != {"allow"}
