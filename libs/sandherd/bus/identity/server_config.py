"""Parts of the configuration that every nats-server of a herd has, in a local stack and in a deployment."""

from typing import Any, Final

from sandherd.bus.identity.capacity import MAX_CONNECTIONS, Capacity
from sandherd.bus.identity.material import BrokerTokens
from sandherd.contracts.streams import BUCKETS, STREAMS

MAX_CLOSED: Final = 1024
"""Maximum number of closed connections that a server remembers. It is needed because a flood may consist of many short
connections."""
STORE_BYTES: Final = sum([*(stream.max_bytes for stream in STREAMS), *(bucket.max_bytes for bucket in BUCKETS)])
"""The sum of the limits of all streams in bytes. By default the broker allows three quarters of the free disk space: on
a machine with less space than this sum it would refuse to create streams, although they are empty."""


def operator_mode(tokens: BrokerTokens) -> dict[str, Any]:
    """The operator that the server trusts, and the accounts that it has from its start. Nothing of it is secret."""
    return {
        "operator": tokens.operator,
        "system_account": tokens.system_account,
        "resolver_preload": tokens.accounts,
    }


def storage_config(data: str, store: str, *, compared: str | None = None) -> dict[str, Any]:
    """Where a server stores its streams in `data`, and the tokens of accounts, which change at each revocation.

    `compared` is the interval at which the servers of a cluster compare their tokens, such as `10s`.
    """
    # The server has all accounts from its start, so the lookup of an unknown account may time out quickly.
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
    # Below the descriptor limit of most machines. `limits` replaces it on a machine with a lower limit.
    "max_connections": MAX_CONNECTIONS,
    # A connection that reads too slowly is closed. Messages in streams are not affected.
    "write_deadline": "10s",
    # A principal's token lists every subject that it may publish; the spawner's exceeds the default of 4 KiB.
    "max_control_line": 32 * 1024,
    "ping_interval": "20s",
    # The server remembers closed connections, also refused ones, with everything that their CONNECT stated: up to some
    # 80 KB each. The flood guard lists them once a second. The default is 10,000.
    "max_closed_clients": MAX_CLOSED,
}
WEBSOCKET_LIMITS: Final[dict[str, Any]] = {
    # Without it, the server never closes a connection that sends an incomplete request or none. Such a connection does
    # not count towards `max_connections`, but uses a file descriptor, which streams may need.
    "handshake_timeout": "5s",
}
"""Limits of the port for websockets."""
