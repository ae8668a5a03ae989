"""A TCP connection to a port on a sandbox's own loopback: the fields of clients' and of workers' requests.

Bytes are sent in pieces. Positions count bytes from the start of the connection, so that a repeated request writes and
returns the same bytes.
"""

from typing import Annotated, Final

from pydantic import Field, StringConstraints

from sandherd.contracts.model import Count
from sandherd.contracts.names import SafeName
from sandherd.contracts.requests.access import MAX_WAIT_SECONDS, Binary, Piece, Wait

MAX_PORT_CONNECTIONS: Final = 32
"""Maximum number of forwarded connections to one sandbox at a time."""
PORT_IDLE_SECONDS: Final = 60.0
"""A connection is closed if there is no request about it for this time, in seconds."""

Port = Annotated[int, Field(ge=1, le=65_535)]
ConnectionName = Annotated[SafeName, StringConstraints(pattern="^con-")]
"""The id of one connection, `con-…`, chosen by the requester."""


class PortWriteFields(Binary):
    """Bytes for a connection. The first request, with `offset` 0, opens it. Repeated bytes are written once."""

    connection: ConnectionName
    port: Port
    offset: Count = 0
    """Number of bytes that precede `data`."""
    data: Piece = b""
    end: bool = False
    """Whether no bytes follow `data`."""
    close: bool = False
    """Whether to close the connection in both directions; `data` is then not written."""
    wait_seconds: Wait = MAX_WAIT_SECONDS
    """How long the reply may wait until the program in the sandbox has read enough of the earlier bytes."""


class PortWritten(Binary):
    """How much a connection has accepted. It may be less than was sent, because a program reads at its own speed."""

    connection: SafeName
    accepted: Count
    """Number of bytes that were accepted since its start: the `offset` of the next request."""
    ended: bool = False
    """Whether `end` was accepted, with all bytes before it. Otherwise repeat the request."""


class PortReadFields(Binary):
    """The bytes of a connection from `offset` on. Earlier bytes count as received, and are deleted."""

    connection: ConnectionName
    offset: Count = 0
    wait_seconds: Wait = MAX_WAIT_SECONDS
    """How long the reply may wait for bytes."""


class PortData(Binary):
    """The next bytes of a connection; empty if none arrived in time."""

    connection: SafeName
    data: Piece = b""
    ended: bool = False
    """Whether no bytes follow `data`."""
