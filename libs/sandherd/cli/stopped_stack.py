"""Whether the stack that a command would use is known to be stopped: by the record that its supervisor has left."""

import json

from sandherd.client.context import FROM_CONTEXT, Context


def is_stopped(context: Context) -> bool:
    """Whether the address is that of this home's stack, which `sandherd down` has ended."""
    if context.sources.get("nats_url") != FROM_CONTEXT:
        return False
    try:
        record = json.loads((context.home / "run" / "state.json").read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("phase") == "stopped"
