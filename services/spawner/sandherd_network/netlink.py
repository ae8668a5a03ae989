"""The netlink messages that set up a sandbox's network: routes and packet filtering (rtnetlink and nf_tables).

No library is used, because this code runs at every start of a sandbox, in a program without installed packages. The
import of a general library for netlink would take longer than the whole start of a sandbox.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final

_REQUEST, _ACK, _CREATE, _EXCL, _APPEND = 0x1, 0x4, 0x400, 0x200, 0x800
"""The flags of messages (netlink(7))."""
_ERROR: Final = 2
_NESTED: Final = 0x8000
_ROUTE, _NETFILTER = 0, 12
"""The netlink protocols NETLINK_ROUTE and NETLINK_NETFILTER."""
_NEW_ADDRESS, _NEW_ROUTE, _GET_ROUTE, _NEW_LINK = 20, 24, 26, 16
_UP: Final = 1
_LOOPBACK: Final = 1
"""The index of `lo` in every namespace."""
_LOCAL: Final = 2
"""RTN_LOCAL: delivered to this host itself."""
UNICAST: Final = 1
"""RTN_UNICAST: sent to another host."""
_NO_DUPLICATE_DETECTION: Final = 2
"""IFA_F_NODAD: while the kernel searches the network for duplicates, the address can't be a route's source."""
_MAIN, _STATIC, _HOST_SCOPE = 254, 4, 254
"""RT_TABLE_MAIN, RTPROT_STATIC and RT_SCOPE_HOST (rtnetlink(7))."""
_BUFFER: Final = 64 * 1024


def attribute(kind: int, value: bytes) -> bytes:
    """An attribute with its header, padded to a multiple of four bytes."""
    return struct.pack("=HH", 4 + len(value), kind) + value + b"\0" * (-len(value) % 4)


def nested_attribute(kind: int, *values: bytes) -> bytes:
    """An attribute that contains attributes."""
    return attribute(kind | _NESTED, b"".join(values))


def message(kind: int, flags: int, payload: bytes, sequence: int = 1) -> bytes:
    """A message with its header."""
    return struct.pack("=IHHII", 16 + len(payload), kind, flags | _REQUEST, sequence, 0) + payload


def _exchange(protocol: int, data: bytes, count: int) -> list[tuple[int, bytes]]:
    """Send messages, and return `count` replies, each as its type and body. Raises `OSError` for an error reply."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol) as kernel:
        kernel.bind((0, 0))
        kernel.settimeout(5.0)
        kernel.sendall(data)
        replies: list[tuple[int, bytes]] = []
        while len(replies) < count:
            replies += _parse_replies(kernel.recv(_BUFFER))
        return replies


def _parse_replies(data: bytes) -> list[tuple[int, bytes]]:
    replies = []
    while len(data) >= 16:  # a header
        length, kind = struct.unpack_from("=IH", data)
        body = data[16:length]
        if kind == _ERROR and (error := -struct.unpack_from("=i", body)[0]):
            raise OSError(error, os.strerror(error))
        replies.append((kind, body))
        data = data[(length + 3) & ~3 :]
    return replies


def _pack_address(address: str) -> tuple[int, bytes]:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return family, socket.inet_pton(family, address)


def enable_loopback() -> None:
    """Set `lo` up. Raises `OSError`."""
    payload = struct.pack("=BBHiII", 0, 0, 0, _LOOPBACK, _UP, _UP)
    _exchange(_ROUTE, message(_NEW_LINK, _ACK, payload), 1)


def add_address(address: str) -> None:
    """Add an address to `lo`. Raises `OSError`."""
    family, packed = _pack_address(address)
    payload = struct.pack("=BBBBI", family, len(packed) * 8, _NO_DUPLICATE_DETECTION, _HOST_SCOPE, _LOOPBACK)
    payload += attribute(1, packed) + attribute(2, packed)
    _exchange(_ROUTE, message(_NEW_ADDRESS, _ACK | _CREATE | _EXCL, payload), 1)


def route_all_to_loopback(source: str) -> None:
    """Deliver packets for every address locally. `source`: the source address of connections. Raises `OSError`."""
    family, packed = _pack_address(source)
    payload = struct.pack("=BBBBBBBBI", family, 0, 0, 0, _MAIN, _STATIC, _HOST_SCOPE, _LOCAL, 0)
    payload += attribute(4, struct.pack("=I", _LOOPBACK)) + attribute(7, packed)
    _exchange(_ROUTE, message(_NEW_ROUTE, _ACK | _CREATE | _EXCL, payload), 1)


def route_type(address: str) -> int | None:
    """How the kernel would route a packet to this address, as an `RTN_` number; None if there is no route."""
    family, packed = _pack_address(address)
    payload = struct.pack("=BBBBBBBBI", family, len(packed) * 8, 0, 0, 0, 0, 0, 0, 0) + attribute(1, packed)
    try:
        _, body = _exchange(_ROUTE, message(_GET_ROUTE, 0, payload), 1)[0]
    except OSError:
        return None
    return body[7]


# --- nf_tables -----------------------------------------------------------------------------------------------------
# Attributes and constants have the numbers of linux/netfilter/nf_tables.h. Matches use register 1.

_SUBSYSTEM: Final = 10 << 8
_BEGIN, _END = 0x10, 0x11
_NEW_TABLE, _DELETE_TABLE, _NEW_CHAIN, _NEW_RULE = 0, 2, 3, 6
_PREROUTING, _PRIORITY = 0, -150  # the hook NF_INET_PRE_ROUTING, and a priority before NAT, NF_IP_PRI_MANGLE
_ACCEPT, _VERDICT_REGISTER = 1, 0
_TABLE, _CHAIN = b"sandherd\0", b"prerouting\0"
_TCP: Final = b"\x06"


class Redirections:
    """The rules of one address family: which TCP connections are redirected to the listening socket of the forwarder.

    They use `tproxy`, because `redirect` needs connection tracking, whose memory is neither charged to a process nor
    limited.
    """

    def __init__(self, family: socket.AddressFamily, listener: str, port: int) -> None:
        self.family, self.listener, self.port = family, listener, port
        self._rules: list[bytes] = []

    def redirect(self, address: str, port: int) -> None:
        """Redirect connections to this address and port."""
        self._rules.append(b"".join((*self._match_address(address), *_match_port(port), *self._redirect_to_listener())))

    def exempt(self, address: str, mask: str) -> None:
        """Do not redirect connections to the network of this address and mask, unless an earlier rule does."""
        parts = zip(socket.inet_pton(self.family, address), socket.inet_pton(self.family, mask), strict=True)
        address = socket.inet_ntop(self.family, bytes(address_byte & mask_byte for address_byte, mask_byte in parts))
        self._rules.append(b"".join((*self._match_address(address, mask), _accept())))

    def redirect_all_other(self) -> None:
        """Redirect all other TCP connections."""
        self._rules.append(b"".join((*_match_tcp(), *self._redirect_to_listener())))

    def install(self) -> None:
        """Install the rules in the kernel. If it raises `OSError`, none of them is installed."""
        table = attribute(1, _TABLE)
        hook = nested_attribute(4, attribute(1, _number(_PREROUTING)), attribute(2, struct.pack("!i", _PRIORITY)))
        chain = table + attribute(3, _CHAIN) + hook + attribute(7, b"filter\0")
        changes = [(_NEW_TABLE, table), (_NEW_CHAIN, chain)]
        changes += [(_NEW_RULE, table + attribute(2, _CHAIN) + nested_attribute(4, rule)) for rule in self._rules]
        with suppress(FileNotFoundError):
            _exchange(_NETFILTER, self._batch([(_DELETE_TABLE, table)]), 1)
        _exchange(_NETFILTER, self._batch(changes), len(changes))

    def _batch(self, changes: Sequence[tuple[int, bytes]]) -> bytes:
        family = 10 if self.family == socket.AF_INET6 else 2
        batch_header = struct.pack("!BBH", 0, 0, 10)
        data = message(_BEGIN, 0, batch_header)
        for number, (kind, payload) in enumerate(changes, 2):
            header = struct.pack("!BBH", family, 0, 0)
            flags = 0 if kind == _DELETE_TABLE else _CREATE | (_APPEND if kind == _NEW_RULE else _EXCL)
            data += message(_SUBSYSTEM | kind, _ACK | flags, header + payload, number)
        return data + message(_END, 0, batch_header)

    def _match_address(self, address: str, mask: str | None = None) -> tuple[bytes, ...]:
        packed = socket.inet_pton(self.family, address)
        load = _load_payload(1, 24 if self.family == socket.AF_INET6 else 16, len(packed))
        if mask is None:
            return (load, _compare(packed))
        return (load, _apply_mask(socket.inet_pton(self.family, mask)), _compare(packed))

    def _redirect_to_listener(self) -> tuple[bytes, ...]:
        family = 10 if self.family == socket.AF_INET6 else 2
        return (
            _load_constant(1, socket.inet_pton(self.family, self.listener)),
            _load_constant(2, struct.pack("!H", self.port)),
            _expression("tproxy", attribute(1, _number(family)), attribute(2, _number(1)), attribute(3, _number(2))),
            _accept(),
        )


def _number(value: int) -> bytes:
    return struct.pack("!I", value)


def _expression(name: str, *attributes: bytes) -> bytes:
    return nested_attribute(1, attribute(1, name.encode() + b"\0"), nested_attribute(2, *attributes))


def _load_payload(base: int, offset: int, length: int) -> bytes:
    parts = (1, 1), (2, base), (3, offset), (4, length)
    return _expression("payload", *(attribute(kind, _number(value)) for kind, value in parts))


def _apply_mask(mask: bytes) -> bytes:
    numbers = (attribute(1, _number(1)), attribute(2, _number(1)), attribute(3, _number(len(mask))))
    return _expression(
        "bitwise",
        *numbers,
        nested_attribute(4, attribute(1, mask)),
        nested_attribute(5, attribute(1, bytes(len(mask)))),
    )


def _compare(value: bytes) -> bytes:
    return _expression(
        "cmp", attribute(1, _number(1)), attribute(2, _number(0)), nested_attribute(3, attribute(1, value))
    )


def _load_constant(register: int, value: bytes) -> bytes:
    return _expression("immediate", attribute(1, _number(register)), nested_attribute(2, attribute(1, value)))


def _accept() -> bytes:
    verdict = nested_attribute(2, nested_attribute(2, attribute(1, _number(_ACCEPT))))
    return _expression("immediate", attribute(1, _number(_VERDICT_REGISTER)), verdict)


def _match_tcp() -> tuple[bytes, ...]:
    return (_expression("meta", attribute(1, _number(1)), attribute(2, _number(16))), _compare(_TCP))


def _match_port(port: int) -> tuple[bytes, ...]:
    return (*_match_tcp(), _load_payload(2, 2, 2), _compare(struct.pack("!H", port)))
