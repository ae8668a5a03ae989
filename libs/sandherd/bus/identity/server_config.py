"""Parts of the configuration that every nats-server of a herd has, in a local stack and in a deployment."""

from typing import Any, Final

from sandherd.bus.identity.capacity import MAX_CONNECTIONS, Capacity
from sandherd.bus.identity.material import BrokerTokens
from sandherd.contracts.streams import BUCKETS, STREAMS

MAX_CLOSED_CONNECTIONS: Final = 1024
"""Maximum number of closed connections that a server remembers. The flood guard needs them, because a flood may consist
of many short connections."""
STORE_BYTES: Final = sum([*(stream.max_bytes for stream in STREAMS), *(bucket.max_bytes for bucket in BUCKETS)])
"""The sum of the size limits of all streams, in bytes. It replaces nats-server's default limit, three quarters of the
free disk space. If the sum exceeded that limit, nats-server would refuse to create streams, although they are empty."""


def operator_mode(tokens: BrokerTokens) -> dict[str, Any]:
    """The operator that the server trusts, and the accounts that the server knows at its start.

    Nothing here is secret.
    """
    return {
        "operator": tokens.operator,
        "system_account": tokens.system_account,
        "resolver_preload": tokens.accounts,
    }


def storage_config(data: str, store: str, *, compare_interval: str | None = None) -> dict[str, Any]:
    """The directories of a server: `store`, inside `data`, has its streams, and `jwt` the accounts' JWTs.

    A revocation changes the JWT of an account. `compare_interval` is the interval at which the servers of a cluster
    compare their JWTs, such as `10s`.
    """
    # The server knows all accounts at its start, so the lookup of an unknown account may time out quickly.
    accounts = {"type": "full", "dir": f"{data}/jwt", "allow_delete": False, "timeout": "500ms"}
    return {
        "resolver": accounts | ({"interval": compare_interval} if compare_interval else {}),
        "jetstream": {
            "store_dir": f"{data}/{store}",
            "max_file_store": STORE_BYTES,
            "max_memory_store": 256 * 1024 * 1024,
            "sync_interval": "1s",
        },
    }


def limits_for(capacity: Capacity) -> dict[str, Any]:
    """`LIMITS` for a server with this maximum number of connections."""
    return {**LIMITS, "max_connections": capacity.connections}


LIMITS: Final[dict[str, Any]] = {
    # This number is below the limit of open files of most machines. `limits_for` replaces it where that limit is lower.
    "max_connections": MAX_CONNECTIONS,
    # A connection that reads too slowly is closed. Messages in streams are not affected.
    "write_deadline": "10s",
    # A token lists every subject that its principal may publish to. The spawner's token exceeds the default of 4 KiB.
    "max_control_line": 32 * 1024,
    "ping_interval": "20s",
    # The server remembers closed and refused connections, each with its CONNECT message, which may have about 80 KB.
    # The flood guard lists these connections once a second. The default is 10,000.
    "max_closed_clients": MAX_CLOSED_CONNECTIONS,
}
WEBSOCKET_LIMITS: Final[dict[str, Any]] = {
    # Without this timeout, the server never closes a connection that sends no complete request. Such a connection does
    # not count towards `max_connections`, but it uses one of the file descriptors that streams need.
    "handshake_timeout": "5s",
}
"""Limits of the port for websockets."""
