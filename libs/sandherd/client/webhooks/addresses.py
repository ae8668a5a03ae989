"""Which addresses a webhook may be sent to: public ones, unless others are permitted."""

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from urllib.parse import SplitResult, urlsplit

from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code

_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_PORTS: Final = {"https": 443, "http": 80}
_NOTATIONS: Final[tuple[tuple[socket.AddressFamily, Callable[[str], bytes]], ...]] = (
    (socket.AF_INET6, partial(socket.inet_pton, socket.AF_INET6)),
    (socket.AF_INET, socket.inet_aton),
)
"""Functions that read addresses; `inet_aton` also reads `127.1` and `0x7f000001`, as the system's resolver does."""


class AddressRefusedError(Exception):
    """The host of a URL has an address that is not permitted, or none."""


def checked_url(text: str, *, private: bool) -> SplitResult:
    """The parts of a URL that webhooks can be sent to: https, or http if private addresses are permitted.

    Raises `HerdError`.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in _PORTS and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise _invalid("it is not a URL") from None
    if not valid or not text.isascii() or not text.isprintable() or " " in text:
        raise _invalid("it is not a URL of http or https")
    if parts.username is not None or parts.password is not None:
        raise _invalid("it contains a credential, which would be in logs")
    if parts.scheme == "http" and not private:
        raise _invalid("it has no TLS")
    return parts


def port_of(parts: SplitResult) -> int:
    """The port of a URL."""
    return parts.port or _PORTS[parts.scheme]


def resolved(parts: SplitResult, *, private: bool) -> str:
    """The address to connect to: the first one of the host, if all of them are permitted. Blocks.

    Raises `AddressRefusedError`, `OSError`.
    """
    host = parts.hostname or ""
    found = socket.getaddrinfo(host, port_of(parts), type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return permitted([str(entry[4][0]) for entry in found], private=private)


def permitted(addresses: Sequence[str], *, private: bool) -> str:
    """The first of a host's addresses. Raises `AddressRefusedError` if there is none, or if one is not permitted."""
    if not addresses:
        raise AddressRefusedError("the host has no address")
    refused = next((one for one in addresses if not is_public(one)), None)
    if refused is not None and not private:
        raise AddressRefusedError(f"{refused} is not a public address")
    return addresses[0]


def literal_address(host: str) -> str | None:
    """The address of a host that is an address, in any notation that the system resolves; None for a name. Pure."""
    for family, read in _NOTATIONS:
        with suppress(OSError):
            return socket.inet_ntop(family, read(host.partition("%")[0]))
    return None


def is_public(address: str) -> bool:
    """Whether an address is public: not of this host, of a private network or of cloud metadata."""
    found: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    return all(one.is_global and not one.is_multicast for one in _with_embedded_ipv4(found))


def _with_embedded_ipv4(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterable[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """The address, and the IPv4 address that is embedded in it if it is an IPv6 address."""
    yield address
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            yield address.ipv4_mapped
        if address.sixtofour is not None:
            yield address.sixtofour
        if address in _NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def _invalid(why: str) -> HerdError:
    remedy = "name an address as https://example.com/events; others need --permit-private"
    return HerdError.of(Code.INVALID_FIELD, f"the URL can't be used: {why}", field="url", remedy=remedy)
