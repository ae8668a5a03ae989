"""Finds out whether the stack that a command would use was stopped, from the state that its supervisor has stored."""

import json

from sandherd.client.context import FROM_CONTEXT, Context


def is_stopped(context: Context) -> bool:
    """Whether the broker's address is from the stack in this home, and the stack was stopped."""
    if context.sources.get("nats_url") != FROM_CONTEXT:
        return False
    try:
        record = json.loads((context.home / "run" / "state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("phase") == "stopped"
