"""How many servers a herd has, and what each is told of the others."""

from pathlib import Path

import pytest

from sandherd.bus.identity.keys import Key, Kind, sign_claims
from sandherd.stack import up
from sandherd.stack.cluster import SizeError, directories, is_broker, memberships, newest_token, size_for, size_of
from sandherd.stack.control import OtherSizeError
from sandherd.stack.nats import quiet_ports


@pytest.mark.parametrize(
    ("held", "wanted", "found"), [(None, None, 1), (None, 3, 3), (1, None, 1), (3, None, 3), (3, 3, 3)]
)
def test_a_herd_keeps_the_number_of_servers_it_was_made_with(
    tmp_path: Path, held: int | None, wanted: int | None, found: int
) -> None:
    """Nobody has to say it a second time."""
    if held:
        directories(tmp_path, held)[0].mkdir()
    assert size_of(tmp_path) == held
    assert size_for(tmp_path, wanted) == found


@pytest.mark.parametrize(("held", "wanted"), [(1, 3), (3, 1), (None, 2), (None, 0)])
async def test_another_number_is_refused_before_anything_is_started(
    tmp_path: Path, held: int | None, wanted: int
) -> None:
    """A server that joins others throws away streams that they do not know of: `up` says so, and touches nothing."""
    if held:
        directories(tmp_path, held)[0].mkdir()
    with pytest.raises(SizeError):
        size_for(tmp_path, wanted)
    before = list(tmp_path.rglob("*"))
    with pytest.raises(OtherSizeError, match="nats-server"):
        await up(tmp_path, nats=wanted)
    assert list(tmp_path.rglob("*")) == before


def test_each_server_is_told_of_the_others_and_shows_no_password() -> None:
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
    ports = quiet_ports(6)
    assert len(set(ports)) == 6


def test_the_token_that_takes_back_most_is_the_newest(tmp_path: Path) -> None:
    """Servers that were away hold older ones, and tokens carry whole seconds only."""
    key = Key.new(Kind.ACCOUNT)
    for name, made, revoked in (("nats-1", 5, {"U1": 9}), ("nats-2", 6, {}), ("nats-3", 6, {"U1": 9, "U2": 9})):
        folder = tmp_path / name / "jwt"
        folder.mkdir(parents=True)
        (folder / "A.jwt").write_text(sign_claims({"sub": "A", "nats": {"revocations": revoked}}, key, made))
    servers = directories(tmp_path, 3)
    assert newest_token(servers, "A") == (tmp_path / "nats-3" / "jwt" / "A.jwt").read_text()
    assert newest_token(servers, "B") is None


def test_a_part_is_a_broker_by_its_name() -> None:
    """Alone or one of three; and what is called alike is none."""
    assert [is_broker(name) for name in ("nats", "nats-2", "natsy", "postgres")] == [True, True, False, False]
