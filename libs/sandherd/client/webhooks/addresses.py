"""The addresses that a webhook may be sent to: public ones, unless others are permitted."""

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
"""IPv6 addresses whose last 32 bits are an IPv4 address (RFC 6052)."""
_DEFAULT_PORTS: Final = {"https": 443, "http": 80}
_NOTATIONS: Final[tuple[tuple[socket.AddressFamily, Callable[[str], bytes]], ...]] = (
    (socket.AF_INET6, partial(socket.inet_pton, socket.AF_INET6)),
    (socket.AF_INET, socket.inet_aton),
)
"""Functions that read addresses; `inet_aton` also reads `127.1` and `0x7f000001`, as the system's resolver does."""


class AddressRefusedError(Exception):
    """The host of a URL has no address, or an address that is not permitted."""


def checked_url(text: str, *, private: bool) -> SplitResult:
    """The parts of a URL that webhooks can be sent to: https, or http if `private` addresses are permitted.

    Raises `HerdError` for any other URL.
    """
    try:
        parts = urlsplit(text)
        valid = parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and parts.port != 0
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
    """The port of a URL, or the default port of its scheme."""
    return parts.port or _DEFAULT_PORTS[parts.scheme]


def resolve_address(parts: SplitResult, *, private: bool) -> str:
    """The address to connect to: the first one of the URL's host, if all of its addresses are permitted. Blocks.

    Raises `AddressRefusedError`, `OSError`.
    """
    host = parts.hostname or ""
    entries = socket.getaddrinfo(host, port_of(parts), type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return first_permitted_address([str(entry[4][0]) for entry in entries], private=private)


def first_permitted_address(addresses: Sequence[str], *, private: bool) -> str:
    """The first of a host's addresses. Raises `AddressRefusedError` if there is none, or if one is not permitted."""
    if not addresses:
        raise AddressRefusedError("the host has no address")
    refused = next((address for address in addresses if not is_public(address)), None)
    if refused is not None and not private:
        raise AddressRefusedError(f"{refused} is not a public address")
    return addresses[0]


def literal_address(host: str) -> str | None:
    """The address that a host is, in the usual notation; None if the host is a name. Pure.

    The host may be in any notation that the system resolves.
    """
    for family, read in _NOTATIONS:
        with suppress(OSError):
            return socket.inet_ntop(family, read(host.partition("%")[0]))  # without an IPv6 zone, such as `%eth0`
    return None


def is_public(address: str) -> bool:
    """Whether an address is public: not an address of this host, of a private network or of cloud metadata."""
    parsed: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    return all(each.is_global and not each.is_multicast for each in _with_embedded_ipv4(parsed))


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


def _invalid(reason: str) -> HerdError:
    remedy = "use a URL such as https://example.com/events; http needs --permit-private"
    return HerdError.of(Code.INVALID_FIELD, f"the URL can't be used: {reason}", field="url", remedy=remedy)
