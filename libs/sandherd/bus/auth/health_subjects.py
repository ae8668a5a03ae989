"""The subjects by which the health of nats-servers is requested. Most programs need no other permissions."""

from typing import Final

HEALTH: Final = "$SYS.REQ.SERVER.PING.HEALTHZ"
"""Where every server of a cluster reports its health."""
WATCHER: Final = "watcher"
"""The user that requests it."""
WATCHER_INBOX: Final = f"_INBOX_{WATCHER}"
