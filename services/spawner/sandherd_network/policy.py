"""What a sandbox may connect to. Pure: decides by the address and port of a connection.

A name in the policy permits the addresses that the host's resolver has returned for it. The forwarder imports this
module, and has no installed packages, so only the standard library is used.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from functools import cached_property

TYPE_CHECKING = False  # `typing` is not loaded at run time, so that this program starts faster
if TYPE_CHECKING:
    from typing import Final, Literal, Self

    Mode = Literal["internet", "allow", "none", "host"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/4", "240.0.0.0/4",
        "168.63.129.16/32",  # Azure's metadata and DNS, at an address that seems public
        "::/3", "4000::/2", "8000::/1",  # all of IPv6 but global unicast (2000::/3)
        "2001::/23", "2002::/16", "3fff::/20",
    )
)  # fmt: skip
"""Networks that are not public: all of IPv6 except 2000::/3, and the networks in 2000::/3 and in IPv4 that are not
globally reachable according to IANA's registries of special-purpose addresses. The networks for examples (192.0.2.0/24,
198.51.100.0/24, 203.0.113.0/24, 2001:db8::/32) are left out, because there is no route to them. `2002::/16` (6to4) and
`2001::/23` (Teredo among others) are included, because these addresses may contain a private IPv4 address."""
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The upper halves of interface ids of ISATAP; the lower half is an IPv4 address (RFC 5214, 6.1)."""


class Endpoint:
    """A host, as a name or an address, and a port; None stands for every port."""

    def __init__(self, host: str, port: int | None = None) -> None:
        self.host, self.port = host, port

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Endpoint) and (self.host, self.port) == (other.host, other.port)

    def __hash__(self) -> int:
        return hash((self.host, self.port))

    def __repr__(self) -> str:
        return f"Endpoint({self.host!r}, {self.port!r})"

    @property
    def address(self) -> Address | None:
        """The address, if the host is written as an address."""
        return parse_address(self.host)

    def matches(self, name: str) -> bool:
        """Whether this host matches the name. `*.example.org` matches every name below example.org."""
        if self.host.startswith("*."):
            return name.endswith(self.host[1:]) and name != self.host[1:]
        return self.host == name

    def includes_port(self, port: int) -> bool:
        """Whether the endpoint includes this port."""
        return self.port is None or self.port == port


def parse_address(text: str) -> Address | None:
    """Parse a text as an address; None if it is a name."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def unpack_address(packed: bytes) -> Address | None:
    """The address in these bytes (four or sixteen, in network order); None if their number is another."""
    try:
        return ipaddress.ip_address(packed)
    except ValueError:
        return None


class NetworkPolicy:
    """What one sandbox may connect to. The spawner writes it, and the sandbox's forwarder reads it.

    `endpoints` are permitted in every mode, at any address: the broker, and those that the operator declares. `allow`
    are the only public hosts, and `networks` the only public networks, that mode `allow` permits. `deny` are public
    networks that are never permitted.
    """

    def __init__(
        self,
        mode: Mode = "internet",
        endpoints: tuple[Endpoint, ...] = (),
        *,
        allow: tuple[Endpoint, ...] = (),
        networks: tuple[str, ...] = (),
        deny: tuple[str, ...] = (),
    ) -> None:
        self.mode, self.endpoints, self.allow, self.networks, self.deny = mode, endpoints, allow, networks, deny

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NetworkPolicy) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def to_json(self) -> str:
        """The JSON that the forwarder reads."""
        hosts = {name: [vars(endpoint) for endpoint in getattr(self, name)] for name in ("endpoints", "allow")}
        return json.dumps({"mode": self.mode, **hosts, "networks": self.networks, "deny": self.deny})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Parse the JSON of `to_json`. Raises `ValueError`, `KeyError`, `TypeError`."""
        fields = json.loads(text)
        return cls(
            mode=fields["mode"],
            endpoints=tuple(Endpoint(**endpoint) for endpoint in fields["endpoints"]),
            allow=tuple(Endpoint(**endpoint) for endpoint in fields["allow"]),
            networks=tuple(fields["networks"]),
            deny=tuple(fields["deny"]),
        )

    @cached_property
    def _denied_networks(self) -> tuple[Network, ...]:
        return (*_NOT_PUBLIC, *_parse_networks(self.deny))

    @cached_property
    def _networks(self) -> tuple[Network, ...]:
        return _parse_networks(self.networks)

    def is_public(self, address: Address) -> bool:
        """Whether this is a public address that is not denied."""
        reachable = _reachable_addresses(address)
        return not any(each in network for each in reachable for network in self._denied_networks)

    def may_resolve(self, name: str) -> bool:
        """Whether the sandbox may resolve this name."""
        return self.mode == "internet" or any(endpoint.matches(name) for endpoint in (*self.endpoints, *self.allow))


def _parse_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text, strict=False) for text in texts)


def unmap_ipv4(address: Address) -> Address:
    """The IPv4 address in an IPv4-mapped address (`::ffff:10.0.0.1`); any other address unchanged."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def _reachable_addresses(address: Address) -> tuple[Address, ...]:
    """The addresses that a connection to `address` may reach: itself, the IPv4 address in it, or either (ISATAP)."""
    if isinstance(address, ipaddress.IPv4Address):
        return (address,)
    inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    if address in _NAT64:
        return (inner,)
    is_isatap = int(address) >> 32 & 0xFFFFFFFF in _ISATAP
    return (unmap_ipv4(address), inner) if is_isatap else (unmap_ipv4(address),)


class Decisions:
    """Decides by a policy, and remembers the addresses of the names in it. All times are in seconds of one clock."""

    def __init__(self, policy: NetworkPolicy) -> None:
        self.policy = policy
        self._resolved: dict[tuple[Endpoint, Address], float] = {}

    def matching_endpoints(self, name: str) -> list[Endpoint]:
        """The entries of the policy that match this name."""
        return [endpoint for endpoint in (*self.policy.endpoints, *self.policy.allow) if endpoint.matches(name)]

    def remember(self, name: str, addresses: Iterable[Address], expires_at: float) -> None:
        """Remember addresses that the host's resolver returned for this name, if an entry of the policy matches it."""
        for endpoint in self.matching_endpoints(name):
            for address in addresses:
                if len(self._resolved) >= _MAX_RESOLVED:
                    self._resolved.pop(next(iter(self._resolved)))
                self._resolved[endpoint, unmap_ipv4(address)] = max(
                    expires_at, self._resolved.get((endpoint, unmap_ipv4(address)), 0.0)
                )

    def resolved_endpoints(self) -> list[tuple[Address, int]]:
        """The endpoints whose address and port are known."""
        known = {(endpoint, address) for endpoint, address in self._resolved if endpoint in self.policy.endpoints}
        known |= {(endpoint, endpoint.address) for endpoint in self.policy.endpoints if endpoint.address}
        return [(address, endpoint.port) for endpoint, address in known if endpoint.port]

    def is_endpoint(self, address: Address, port: int, now: float) -> bool:
        """Whether this is the broker, or another declared endpoint."""
        return any(self._matches(endpoint, unmap_ipv4(address), port, now) for endpoint in self.policy.endpoints)

    def refusal(self, address: Address, port: int, now: float) -> str | None:
        """Why the sandbox may not connect to this address and port, as a short text; None if it may."""
        if self.is_endpoint(address, port, now):
            return None
        if self.policy.mode == "none":
            return "this sandbox has no network"
        if not self.policy.is_public(address):
            return "not a public address, and not a declared endpoint"
        if self.policy.mode == "allow" and not self._is_allowed(unmap_ipv4(address), port, now):
            return "not in the allow-list"
        return None

    def _is_allowed(self, address: Address, port: int, now: float) -> bool:
        is_allowed_host = any(self._matches(endpoint, address, port, now) for endpoint in self.policy.allow)
        return is_allowed_host or any(address in network for network in self.policy._networks)  # noqa: SLF001  # defined above

    def _matches(self, endpoint: Endpoint, address: Address, port: int, now: float) -> bool:
        if not endpoint.includes_port(port):
            return False
        literal_address = endpoint.address
        return (
            unmap_ipv4(literal_address) == address
            if literal_address
            else self._resolved.get((endpoint, address), 0.0) > now
        )


_MAX_RESOLVED: Final = 4096
"""Maximum resolved addresses that a forwarder remembers."""
