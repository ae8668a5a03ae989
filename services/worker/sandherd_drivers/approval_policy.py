"""Whether an agent must request approval before it uses its tools."""

from collections.abc import Mapping
from typing import Any


def needs_approval(harness: Mapping[str, Any]) -> bool:
    """Whether any tool needs approval or is denied. Which of them, the worker decides."""
    approvals = harness.get("approvals") or {}
    return {approvals.get("otherwise", "allow"), *(approvals.get("tools") or {}).values()} != {"allow"}
