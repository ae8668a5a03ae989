"""The number of servers of a herd, and the membership of each."""

from pathlib import Path

import pytest

from sandherd.bus.identity.keys import Key, KeyKind, sign_claims
from sandherd.stack import up
from sandherd.stack.cluster import SizeError, directories, memberships, newest_token, size_for, size_of
from sandherd.stack.control import OtherSizeError
from sandherd.stack.nats import free_ports
from sandherd.stack.server_health import is_broker


@pytest.mark.parametrize(
    ("held", "wanted", "found"), [(None, None, 1), (None, 3, 3), (1, None, 1), (3, None, 3), (3, 3, 3)]
)
def test_herd_keeps_its_number_of_servers(tmp_path: Path, held: int | None, wanted: int | None, found: int) -> None:
    """The number need not be given a second time."""
    if held:
        directories(tmp_path, held)[0].mkdir()
    assert size_of(tmp_path) == held
    assert size_for(tmp_path, wanted) == found


@pytest.mark.parametrize(("held", "wanted"), [(1, 3), (3, 1), (None, 2), (None, 0)])
async def test_other_number_of_servers_is_refused_before_the_start(
    tmp_path: Path, held: int | None, wanted: int
) -> None:
    """A server that joins others drops streams unknown to them: `up` reports it, and changes nothing."""
    if held:
        directories(tmp_path, held)[0].mkdir()
    with pytest.raises(SizeError):
        size_for(tmp_path, wanted)
    before = list(tmp_path.rglob("*"))
    with pytest.raises(OtherSizeError, match="nats-server"):
        await up(tmp_path, nats=wanted)
    assert list(tmp_path.rglob("*")) == before


def test_cluster_members_have_routes_and_show_no_password() -> None:
    """Every route is one of another server, on this machine only, and is opened by the password."""
    found = [membership for membership in memberships(3, "hush") if membership]
    ports = {membership.route for membership in found}
    assert len(ports) == len({membership.name for membership in found}) == 3
    for membership in found:
        assert {membership.route, *membership.others} == ports
        config = membership.config()
        assert config["authorization"]["password"] == "hush"
        assert all(route.startswith("nats-route://route:hush@127.0.0.1:") for route in config["routes"])
        assert "hush" not in repr(membership)
    assert memberships(1, "hush") == [None]


def test_ports_are_all_different() -> None:
    """Three servers that are started at once must not choose the same one."""
    ports = free_ports(6)
    assert len(set(ports)) == 6


def test_token_with_the_most_revocations_is_the_newest(tmp_path: Path) -> None:
    """Servers that were down hold older ones, and tokens carry whole seconds only."""
    key = Key.new(KeyKind.ACCOUNT)
    for name, made, revoked in (("nats-1", 5, {"U1": 9}), ("nats-2", 6, {}), ("nats-3", 6, {"U1": 9, "U2": 9})):
        folder = tmp_path / name / "jwt"
        folder.mkdir(parents=True)
        (folder / "A.jwt").write_text(sign_claims({"sub": "A", "nats": {"revocations": revoked}}, key, made))
    servers = directories(tmp_path, 3)
    assert newest_token(servers, "A") == (tmp_path / "nats-3" / "jwt" / "A.jwt").read_text()
    assert newest_token(servers, "B") is None
    newest = (tmp_path / "nats-3" / "jwt" / "A.jwt").read_text()
    for half_written in ("", newest[:-100], newest[:40]):
        (tmp_path / "nats-1" / "jwt" / "A.jwt").write_text(half_written)
        assert newest_token(servers, "A") == newest


def test_broker_is_recognised_by_its_name() -> None:
    """A single one and one of three are; a similar name is none."""
    assert [is_broker(name) for name in ("nats", "nats-2", "natsy", "postgres")] == [True, True, False, False]
