"""The subject and the user by which the health of nats-servers is requested."""

from typing import Final

HEALTH: Final = "$SYS.REQ.SERVER.PING.HEALTHZ"
"""The request to which every server of a cluster replies with its health."""
WATCHER: Final = "watcher"
"""The user that requests the health of servers."""
WATCHER_INBOX: Final = f"_INBOX_{WATCHER}"
