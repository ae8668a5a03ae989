"""Network policies of sandboxes: addresses, settings and profiles, and the parsing of DNS."""

import ipaddress
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sandherd_network import dns_messages
from sandherd_network.connections import TokenBucket
from sandherd_network.policy import Decisions, Endpoint, NetworkPolicy
from sandherd_network.relay import RelayDirection

from sandherd.contracts.network import SandboxNetwork, split_destination
from spawner.runtimes.network import Networks

ip = ipaddress.ip_address
PRIVATE = (
    "0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "100.127.255.255", "127.0.0.1", "127.255.255.254",
    "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8", "192.168.0.1", "198.18.0.1", "224.0.0.1",
    "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16", "100.100.100.200", "::", "::1", "::10.0.0.1",
    "::ffff:10.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
    "2002:a00:1::1", "2001::1", "fc00::1", "fd00:ec2::254", "fe80::1", "febf::1", "fec0::1", "ff02::1",
    "::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8", "2001:470:1::5efe:10.0.0.1", "2606:4700::200:5efe:169.254.169.254",
    "::1:0:0:1", "200::1", "400::1", "1000::1", "4000::1", "8000::1", "e000::1", "f800::1", "fe00::1",
)  # fmt: skip
PUBLIC = (
    "1.1.1.1",
    "8.8.8.8",
    "100.63.0.1",
    "100.128.0.1",
    "172.32.0.1",
    "2606:4700::1",
    "64:ff9b::808:808",
    "::ffff:8.8.8.8",
    "2001:470:1::5efe:8.8.8.8",
    "3000::1",
)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_address_is_never_public(address: str) -> None:
    """Every notation is refused in every mode, at every port."""
    assert not NetworkPolicy().is_public(ip(address))
    allowing = NetworkPolicy(mode="allow", networks=("0.0.0.0/0", "::/0"), allow=(Endpoint(str(ip(address))),))
    for policy in (NetworkPolicy(), NetworkPolicy(mode="none"), allowing):
        assert Decisions(policy).refusal(ip(address), 80, 0.0) is not None


@pytest.mark.parametrize("address", PUBLIC)
def test_public_address_is_reachable_unless_denied(address: str) -> None:
    """Mode `internet` permits it; an operator's own networks can be excluded."""
    assert Decisions(NetworkPolicy()).refusal(ip(address), 80, 0.0) is None
    assert Decisions(NetworkPolicy(deny=("0.0.0.0/0", "::/0"))).refusal(ip(address), 80, 0.0) is not None
    assert Decisions(NetworkPolicy(mode="none")).refusal(ip(address), 80, 0.0) is not None


@given(st.ip_addresses())
def test_address_is_judged_like_its_mapped_form(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    """An IPv4 address and its IPv6 form are one."""
    decisions = Decisions(NetworkPolicy())
    if isinstance(address, ipaddress.IPv4Address):
        mapped = ip(f"::ffff:{address}")
        assert (decisions.refusal(mapped, 80, 0.0) is None) == (decisions.refusal(address, 80, 0.0) is None)


@given(st.ip_addresses(v=6))
def test_only_global_unicast_and_checked_translations_are_public(address: ipaddress.IPv6Address) -> None:
    """Of IPv6 only 2000::/3 is public, except for the forms that stand for an IPv4 address."""
    translated = any(address in ipaddress.ip_network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96"))
    if NetworkPolicy().is_public(address):
        assert translated or address in ipaddress.ip_network("2000::/3")


@given(st.ip_addresses(v=4), st.integers(0, 2**64 - 1))
def test_embedded_address_is_judged_like_itself(inner: ipaddress.IPv4Address, prefix: int) -> None:
    """Translation and ISATAP lead to no IPv4 address that is not public, and to none that is denied."""
    last, deny = int(inner), NetworkPolicy(deny=(str(inner),))
    isatap = [ipaddress.IPv6Address(prefix << 64 | kind << 32 | last) for kind in (0x5EFE, 0x0200_5EFE)]
    for each in (ip(f"::ffff:{inner}"), ip(f"64:ff9b::{inner}")):
        assert NetworkPolicy().is_public(each) == NetworkPolicy().is_public(inner)
        assert not deny.is_public(each)
    for each in isatap:
        assert NetworkPolicy().is_public(inner) or not NetworkPolicy().is_public(each)
        assert not deny.is_public(each)
    for form in (f"::{inner}", f"::ffff:0:{inner}", f"64:ff9b:1::{inner}", f"2002:{last >> 16:x}:{last & 0xFFFF:x}::1"):
        assert not NetworkPolicy().is_public(ip(form))


PRIVATE_V4 = st.sampled_from([address for address in PRIVATE if ":" not in address]).map(ipaddress.IPv4Address)


@given(PRIVATE_V4, st.integers(0x2000 << 48, (0x4000 << 48) - 1), st.sampled_from((0x5EFE, 0x0200_5EFE)))
def test_isatap_interface_leads_to_no_private_address(inner: ipaddress.IPv4Address, prefix: int, kind: int) -> None:
    """This holds for every prefix of global unicast."""
    assert not NetworkPolicy().is_public(ipaddress.IPv6Address(prefix << 64 | kind << 32 | int(inner)))


def test_endpoint_is_one_port_of_one_host_in_every_mode() -> None:
    """Loopback is included; a name is what the resolver returned for it, until that expires."""
    for mode in ("internet", "allow", "none"):
        policy = NetworkPolicy(mode=mode, endpoints=(Endpoint("127.0.0.1", 4222), Endpoint("db.internal", 5432)))
        decisions = Decisions(policy)
        assert decisions.refusal(ip("127.0.0.1"), 4222, 0.0) is None
        assert decisions.refusal(ip("::ffff:127.0.0.1"), 4222, 0.0) is None
        assert decisions.refusal(ip("127.0.0.1"), 8222, 0.0)
        assert decisions.refusal(ip("127.0.0.2"), 4222, 0.0)
        assert decisions.refusal(ip("10.0.0.5"), 5432, 0.0)
        decisions.remember("db.internal", [ip("10.0.0.5")], expires_at=100.0)
        assert decisions.refusal(ip("10.0.0.5"), 5432, 99.0) is None
        assert decisions.refusal(ip("10.0.0.5"), 5432, 101.0)
        assert decisions.refusal(ip("10.0.0.5"), 22, 0.0)


def test_unlisted_name_permits_no_address() -> None:
    """Only addresses of names in the policy are remembered."""
    decisions = Decisions(NetworkPolicy(mode="allow", allow=(Endpoint("*.good.example"),)))
    decisions.remember("evil.example", [ip("8.8.8.8")], expires_at=100.0)
    decisions.remember("good.example", [ip("8.8.8.8")], expires_at=100.0)
    assert decisions.refusal(ip("8.8.8.8"), 443, 0.0)
    decisions.remember("a.b.good.example", [ip("8.8.8.8"), ip("10.0.0.1")], expires_at=100.0)
    assert decisions.refusal(ip("8.8.8.8"), 443, 0.0) is None
    assert decisions.refusal(ip("10.0.0.1"), 443, 0.0)
    assert [decisions.policy.may_resolve(name) for name in ("x.good.example", "good.example", "evil.example")] == [
        True, False, False,
    ]  # fmt: skip


@given(st.binary(max_size=300))
def test_any_dns_message_is_parsed_or_dropped(message: bytes) -> None:
    """A query or a reply of any bytes raises no exception and ends."""
    dns_messages.parse_question(message)
    dns_messages.parse_addresses(message)
    dns_messages.is_standard_query(message)


def query(*, flags: int = 0x0100, kind: int = 1, family: int = 1, counts: tuple[int, ...] = (0, 0, 0)) -> bytes:
    """A DNS message with one question, for corp.example."""
    name = b"\x04corp\x07example\x00"
    return struct.pack("!HHHHHH", 7, flags, 1, *counts) + name + struct.pack("!HH", kind, family)


OPT = b"\0" + struct.pack("!HHIH", 41, 1232, 0, 4) + b"\0\x0a\0\0"


@pytest.mark.parametrize("message", [query(), query(kind=28), query(counts=(0, 0, 1)) + OPT])
def test_standard_query_is_forwarded(message: bytes) -> None:
    """A query with or without one OPT record is forwarded."""
    assert dns_messages.is_standard_query(message)


@pytest.mark.parametrize(
    "message",
    [
        *(query(flags=operation << 11) for operation in range(1, 16)),
        query(flags=0x8180),
        query(kind=252),
        query(kind=251),
        query(family=3),
        query() + b"more",
        query(counts=(0, 1, 0)) + OPT,
        query(counts=(1, 0, 0)) + OPT,
        query(counts=(0, 0, 2)) + OPT + OPT,
        query(counts=(0, 0, 1)) + OPT + b"more",
        query(counts=(0, 0, 1)) + OPT[:-1],
        query(counts=(0, 0, 1)) + b"\0" + struct.pack("!HHIH", 250, 1, 0, 0),
        query(counts=(0, 0, 1)),
    ],
)
def test_other_operations_and_records_are_not_forwarded(message: bytes) -> None:
    """An update, a transfer, a signature or trailing bytes would reach the host's own resolver."""
    assert not dns_messages.is_standard_query(message)


def test_addresses_are_read_behind_pointers_and_other_records() -> None:
    """A CNAME, an A and an AAAA record are read."""
    name = b"\x03www\x07example\x00"
    head = struct.pack("!HHHHHH", 1, 0x8180, 1, 3, 0, 0) + name + struct.pack("!HH", 1, 1)
    records = b"".join(
        b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data
        for kind, data in ((5, b"\x01a\xc0\x10"), (1, bytes([8, 8, 4, 4])), (28, ip("2606:4700::1").packed))
    )
    question = dns_messages.parse_question(head + records)
    assert question is not None
    assert question.name == "www.example"
    assert [str(found.address) for found in dns_messages.parse_addresses(head + records)] == ["8.8.4.4", "2606:4700::1"]


def test_bucket_permits_a_burst_and_then_its_rate() -> None:
    """Three at once, then two a second."""
    bucket = TokenBucket(rate=2.0, burst=3.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]


def test_profile_overrides_network_and_broker_is_always_reachable() -> None:
    """Profiles narrow or widen the network as configured; what they leave out is the herd's."""
    networks = Networks(
        mode="internet",
        allow=frozenset({"one.example"}),
        endpoints=frozenset({"127.0.0.1:11434"}),
        services=("nats://user:pass@10.0.0.9:4222,nats://b.internal", "https://collector:4318/v1"),
        profiles={
            "shut": SandboxNetwork(mode="none", endpoints=()),
            "listed": SandboxNetwork(mode="allow", allow=("two.example:443", "198.51.100.0/24")),
        },
    )
    broker = (Endpoint("10.0.0.9", 4222), Endpoint("b.internal", 4222), Endpoint("collector", 4318))
    usual, shut, listed = (networks.policy(name) for name in (None, "shut", "listed"))
    assert (usual.mode, usual.endpoints) == ("internet", (*broker, Endpoint("127.0.0.1", 11434)))
    assert (shut.mode, shut.endpoints) == ("none", broker)
    assert (listed.mode, listed.allow, listed.networks) == (
        "allow",
        (Endpoint("two.example", 443),),
        ("198.51.100.0/24",),
    )
    assert NetworkPolicy.from_json(listed.to_json()) == listed
    assert "pass" not in usual.to_json()


def test_destinations_are_parsed_or_refused() -> None:
    """Hosts with and without ports, and addresses of both kinds are parsed."""
    read = {
        text: split_destination(text) for text in ("A.Example.", "a:1", "[::1]:80", "::1", "10.0.0.1:65535", "*.x.y")
    }
    assert list(read.values()) == [
        ("a.example", None), ("a", 1), ("::1", 80), ("::1", None), ("10.0.0.1", 65535), ("*.x.y", None),
    ]  # fmt: skip
    for wrong in (
        "",
        ":80",
        "a:0",
        "a:65536",
        "a b",
        "a..b",
        "-a",
        "1.2.3",
        "a:x",
        "*",
        "http://a",
        "a/b",
        "2130706433",
    ):
        with pytest.raises(ValueError, match=r"."):
            split_destination(wrong)


class Scripted:
    """A source of this many pieces and then its end, and a sink that takes all."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.taken, self.ended = pieces, 0, False

    def recv_into(self, buffer: memoryview) -> int:
        self.pieces -= 1
        return 1 if self.pieces >= 0 else 0

    def send(self, data: memoryview) -> int:
        self.taken += len(data)
        return len(data)

    def shutdown(self, _how: int) -> None:
        self.ended = True


@pytest.mark.parametrize("pieces", range(20))
def test_end_of_stream_is_passed_on(pieces: int) -> None:
    """The end is passed on even if it is the last data that one call reads: no later call would follow."""
    source, sink = Scripted(pieces), Scripted(0)
    flow = RelayDirection(source, sink)  # type: ignore[arg-type]  # what it uses of sockets
    while not flow.ended:
        flow.pump()
    assert (sink.taken, sink.ended, flow.finished) == (pieces, True, True)
