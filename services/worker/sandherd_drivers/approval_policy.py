"""Whether an agent must request approval before it uses its tools."""

from collections.abc import Mapping
from typing import Any


def needs_approval(harness: Mapping[str, Any]) -> bool:
    """Whether any tool needs approval or is denied. The worker then decides about each call."""
    approvals = harness.get("approvals") or {}
    return {approvals.get("otherwise", "allow"), *(approvals.get("tools") or {}).values()} != {"allow"}
