"""What every nats-server of a herd is told, on this machine or in a deployment."""

from typing import Any, Final

from sandherd.bus.identity.capacity import MOST_CONNECTIONS, Capacity
from sandherd.bus.identity.material import BrokerTokens
from sandherd.contracts.streams import BUCKETS, STREAMS

STORE_BYTES: Final = sum([*(stream.max_bytes for stream in STREAMS), *(bucket.max_bytes for bucket in BUCKETS)])
"""What all streams together may hold. The broker would else allow three quarters of the free disk, and refuse to make
streams on a machine with less, although they are empty."""


def operator_mode(tokens: BrokerTokens) -> dict[str, Any]:
    """Whom the server trusts, and the accounts that it knows from its start; nothing of it is secret."""
    return {
        "operator": tokens.operator,
        "system_account": tokens.system_account,
        "resolver_preload": tokens.accounts,
    }


def keeping(data: str, store: str, *, compared: str | None = None) -> dict[str, Any]:
    """Where a server keeps accounts, which the spawner signs anew with each revocation, and streams.

    `compared` is how often the servers of a cluster compare their accounts.
    """
    # Every account is known from the start, so the wait for one that is not is short.
    accounts = {"type": "full", "dir": f"{data}/jwt", "allow_delete": False, "timeout": "500ms"}
    return {
        "resolver": accounts | ({"interval": compared} if compared else {}),
        "jetstream": {
            "store_dir": f"{data}/{store}",
            "max_file_store": STORE_BYTES,
            "max_memory_store": 256 * 1024 * 1024,
            "sync_interval": "1s",
        },
    }


def limits(capacity: Capacity) -> dict[str, Any]:
    """`LIMITS` for a server with this maximum number of connections."""
    return {**LIMITS, "max_connections": capacity.connections}


LIMITS: Final[dict[str, Any]] = {
    # Under the default of most machines' descriptors; fewer where a server may open fewer files.
    "max_connections": MOST_CONNECTIONS,
    # A reply that waits for a slow reader is cut off; the streams do not need it.
    "write_deadline": "10s",
    # A principal's token names every subject it may say; the spawner's is over the 4 KiB of the default.
    "max_control_line": 32 * 1024,
    "ping_interval": "20s",
}
