"""What a sandbox may connect to. Pure: decides by the destination's address, never by the name it was looked up by.

Imported by the forwarder, which runs without installed packages: the standard library only.
"""

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Final, Literal, Self

Mode = Literal["internet", "allow", "none", "host"]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # Azure's metadata and DNS, at an address that looks public
        "::/96", "::ffff:0:0/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2002::/16", "3fff::/20", "5f00::/16",
        "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8",
    )
)  # fmt: skip
"""What IANA's registries of special-purpose addresses do not call globally reachable. Not the networks for examples
(192.0.2.0/24, 198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32), which lead nowhere. `2002::/16` (6to4) and `2001::/23`
(Teredo among others) may carry a private IPv4 address."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")


@dataclass(frozen=True)
class Endpoint:
    """A host, as a name or an address, and a port; None stands for every port."""

    host: str
    port: int | None = None

    @property
    def address(self) -> Address | None:
        """The address, if the host is written as one."""
        return literal(self.host)

    def names(self, name: str) -> bool:
        """Whether this host is that name. `*.example.org` is every name below example.org."""
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and name != self.host[1:]
        return self.host == name

    def at(self, port: int) -> bool:
        """Whether the port is one of its ports."""
        return self.port is None or self.port == port


def literal(text: str) -> Address | None:
    """The address that a text is, or None for a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def literal_bytes(packed: bytes) -> Address | None:
    """The address that these bytes are (four or sixteen, in network order)."""
    try:
        return ipaddress.ip_address(packed)
    except ValueError:
        return None


@dataclass(frozen=True)
class NetworkPolicy:
    """What one sandbox may reach. Written by the spawner, read by the sandbox's forwarder."""

    mode: Mode = "internet"
    endpoints: tuple[Endpoint, ...] = ()
    """Reached in every mode, wherever they are: the broker, and what the operator declares."""
    allow: tuple[Endpoint, ...] = ()
    """The only public hosts that are reached in mode `allow`."""
    networks: tuple[str, ...] = ()
    """Public networks that are reached in mode `allow`."""
    deny: tuple[str, ...] = ()
    """Networks that are never reached, though they are public."""

    def to_json(self) -> str:
        """As the forwarder reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises `ValueError`, `KeyError`, `TypeError`."""
        found = json.loads(text)
        return cls(
            mode=found["mode"],
            endpoints=tuple(Endpoint(**one) for one in found["endpoints"]),
            allow=tuple(Endpoint(**one) for one in found["allow"]),
            networks=tuple(found["networks"]),
            deny=tuple(found["deny"]),
        )

    @cached_property
    def _denied(self) -> tuple[Network, ...]:
        return (*_NOT_PUBLIC, *_parsed(self.deny))

    @cached_property
    def _networks(self) -> tuple[Network, ...]:
        return _parsed(self.networks)

    def is_public(self, address: Address) -> bool:
        """Whether it is an address of the internet that is not denied."""
        return not any(plain in network for plain in _meanings(address) for network in self._denied)

    def may_resolve(self, name: str) -> bool:
        """Whether the sandbox may look this name up."""
        return self.mode == "internet" or any(one.names(name) for one in (*self.endpoints, *self.allow))


def _parsed(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def plain(address: Address) -> Address:
    """An IPv4 address that is written as an IPv6 one (`::ffff:10.0.0.1`), as itself."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _meanings(address: Address) -> tuple[Address, ...]:
    """The address, or the IPv4 address in it; through a NAT64 gateway the latter is what is reached."""
    if isinstance(address, ipaddress.IPv6Address) and address in _NAT64:
        return (ipaddress.IPv4Address(int(address) & 0xFFFFFFFF),)
    return (plain(address),)


@dataclass
class Decisions:
    """The policy with what its names were resolved to. `remember` and `refusal` take the time in seconds."""

    policy: NetworkPolicy
    _known: dict[tuple[Endpoint, Address], float] = field(default_factory=dict)

    def names(self, name: str) -> list[Endpoint]:
        """The entries of the policy that this name is one of."""
        return [one for one in (*self.policy.endpoints, *self.policy.allow) if one.names(name)]

    def remember(self, name: str, addresses: Iterable[Address], until: float) -> None:
        """Our own resolver has given these for this name."""
        for entry in self.names(name):
            for address in addresses:
                if len(self._known) >= _MOST_PINS:
                    self._known.pop(next(iter(self._known)))
                self._known[entry, plain(address)] = max(until, self._known.get((entry, plain(address)), 0.0))

    def fixed(self) -> list[tuple[Address, int]]:
        """The endpoints whose address and port are known."""
        found = {(one, address) for one, address in self._known if one in self.policy.endpoints}
        found |= {(one, one.address) for one in self.policy.endpoints if one.address}
        return [(address, one.port) for one, address in found if one.port]

    def is_endpoint(self, address: Address, port: int, now: float) -> bool:
        """Whether this is the broker, or another declared endpoint."""
        return any(self._matches(one, plain(address), port, now) for one in self.policy.endpoints)

    def refusal(self, address: Address, port: int, now: float) -> str | None:
        """Why the sandbox may not connect there, in a few words; None if it may."""
        if self.is_endpoint(address, port, now):
            return None
        if self.policy.mode == "none":
            return "this sandbox has no network"
        if not self.policy.is_public(address):
            return "not a public address, and not a declared endpoint"
        if self.policy.mode == "allow" and not self._allowed(plain(address), port, now):
            return "not in the allow-list"
        return None

    def _allowed(self, address: Address, port: int, now: float) -> bool:
        named = any(self._matches(one, address, port, now) for one in self.policy.allow)
        return named or any(address in network for network in self.policy._networks)  # noqa: SLF001  # its own module

    def _matches(self, entry: Endpoint, address: Address, port: int, now: float) -> bool:
        if not entry.at(port):
            return False
        written = entry.address
        return plain(written) == address if written else self._known.get((entry, address), 0.0) > now


_MOST_PINS: Final = 4096
"""How many addresses of names one sandbox may make its forwarder remember."""
