"""The configuration of every nats-server of a herd, on this machine or in a deployment."""

from typing import Any, Final

from sandherd.bus.identity.capacity import MAX_CONNECTIONS, Capacity
from sandherd.bus.identity.material import BrokerTokens
from sandherd.contracts.streams import BUCKETS, STREAMS

MAX_CLOSED: Final = 1024
"""Maximum number of closed connections that a server remembers: a flood may consist of many short ones."""
STORE_BYTES: Final = sum([*(stream.max_bytes for stream in STREAMS), *(bucket.max_bytes for bucket in BUCKETS)])
"""Maximum bytes of all streams together. By default the broker would allow three quarters of the free disk, and refuse
to create streams on a machine with less, although they are empty."""


def operator_mode(tokens: BrokerTokens) -> dict[str, Any]:
    """The operator that the server trusts, and the accounts that it knows from its start; nothing of it is secret."""
    return {
        "operator": tokens.operator,
        "system_account": tokens.system_account,
        "resolver_preload": tokens.accounts,
    }


def storage_config(data: str, store: str, *, compared: str | None = None) -> dict[str, Any]:
    """Where a server stores streams, and accounts, which the spawner signs again at each revocation.

    `compared` is the interval at which the servers of a cluster compare their accounts.
    """
    # Every account is known from the start, so looking up an unknown one may time out quickly.
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
    # Below the default descriptor limit of most machines; lower where a server may open fewer files.
    "max_connections": MAX_CONNECTIONS,
    # A connection that reads too slowly is closed; streams do not depend on it.
    "write_deadline": "10s",
    # A principal's token lists every subject that it may publish; the spawner's exceeds the default of 4 KiB.
    "max_control_line": 32 * 1024,
    "ping_interval": "20s",
    # The server remembers closed connections with all that their CONNECT stated, up to some 80 KB each, also refused
    # ones. The flood guard lists them once a second. The default is 10,000.
    "max_closed_clients": MAX_CLOSED,
}
WEBSOCKET_LIMITS: Final[dict[str, Any]] = {
    # Without it the server never closes a connection that sends no request, or a part of one. It does not count towards
    # `max_connections`, and uses a file descriptor that streams need.
    "handshake_timeout": "5s",
}
"""Limits of the port for websockets."""
