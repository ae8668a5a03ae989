"""Outgoing webhooks: where they may be sent, in which order, how often, and with which signature."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from sandherd.client.errors import HerdError
from sandherd.client.webhooks.addresses import AddressRefusedError, checked_url, first_permitted_address, is_public
from sandherd.client.webhooks.arrival_order import ArrivalOrder
from sandherd.client.webhooks.delivery import DeliveryLimits, read_secrets, retry_delay
from sandherd.client.webhooks.sender import Sender, SendResult, WebhookMessage
from sandherd.webhook_signatures import new_secret, signature
from tests.patience import PATIENCE

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
REFUSED = SendResult(500, "status 500")


def test_only_public_addresses_are_connected_to() -> None:
    """No loopback, private network, link-local metadata or multicast, also as an IPv6 address that stands for one."""
    for public in ("93.184.216.34", "2606:4700::1111", "::ffff:93.184.216.34"):
        assert is_public(public)
    for address in (
        "127.0.0.1", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "224.0.0.1",
        "::1", "::", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:a9fe:a9fe",
        "2002:7f00:1::", "64:ff9b::7f00:1", "255.255.255.255",
    ):  # fmt: skip
        assert not is_public(address), address
        with pytest.raises(AddressRefusedError):
            first_permitted_address(["93.184.216.34", address], private=False)
        assert first_permitted_address([address], private=True) == address
    with pytest.raises(AddressRefusedError):
        first_permitted_address([], private=True)


def test_slow_response_does_not_prolong_a_request() -> None:
    """A receiver that sends one byte after the other, each in time, has a limit for the whole response."""

    def trickle() -> None:
        connected, _ = listener.accept()
        with connected, suppress(ConnectionError):
            connected.recv(65_536)  # closing before that would reset the connection
            for byte in b"HTTP/1.1 204 No Content\r\n" + b"X-Slow: 1\r\n" * 20 + b"\r\n":
                connected.sendall(bytes([byte]))
                Event().wait(0.01)  # this is the slowness, and nothing is waited for

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:
        url = checked_url(f"http://127.0.0.1:{listener.getsockname()[1]}/", private=True)
        serving = pool.submit(trickle)
        late = Sender(url, private=True, total_seconds=0.2).send(b"{}", {})
        assert (late.status, late.reason) == (None, "TimeoutError: no complete response within 0.2 s")
        serving.result()
        serving = pool.submit(trickle)
        assert Sender(url, private=True, seconds=PATIENCE, total_seconds=PATIENCE).send(b"{}", {}).is_accepted
        serving.result()


def test_url_has_tls_and_no_credential() -> None:
    """`http` only together with private addresses; no other scheme."""
    assert checked_url("https://example.com/a?b=c", private=False).hostname == "example.com"
    assert checked_url("http://localhost:80/", private=True).port == 80
    for url in ("http://example.com", "https://a:b@example.com", "file:///etc/passwd", "https://", "https://a b/",
                "https://example.com:99999/", "gopher://x/", "https://x/\n", ""):  # fmt: skip
        with pytest.raises(HerdError) as refused:
            checked_url(url, private=False)
        assert refused.value.problem.field == "url"


def test_events_that_were_not_acknowledged_come_first() -> None:
    """After a kill they are redelivered later than new ones are delivered; one that comes twice is handled once."""
    order = ArrivalOrder[str](2)
    assert [*order.add(9, 1, "new")] == []
    assert [*order.add(4, 2, "b")] == []
    assert [*order.add(4, 3, "b")] == []
    assert order.is_waiting
    assert [*order.add(3, 2, "a")] == ["a", "b", "new"]
    assert [*order.add(10, 1, "c")] == ["c"]
    assert [*order.add(10, 2, "c")] == []
    order.done(10)
    assert [*order.add(10, 2, "c")] == ["c"]
    alone = ArrivalOrder[str](1)
    assert [*alone.add(2, 1, "b"), *alone.add(1, 1, "a")] == []
    assert [*alone.release()] == ["a", "b"]
    assert [*alone.release()] == []


def test_retries_are_later_each_time_and_end_at_the_maximum_age() -> None:
    """The receiver's `Retry-After` is respected; what would be sent after the maximum age is given up."""
    limits = DeliveryLimits(age=timedelta(minutes=10))
    first, later = retry_delay(REFUSED, 0, NOW, NOW, limits), retry_delay(REFUSED, 9, NOW, NOW, limits)
    assert first is not None
    assert later is not None
    assert 0.4 <= first <= 1
    assert 100 <= later <= 300
    assert retry_delay(SendResult(429, "", 400.0), 0, NOW, NOW, limits) == 400.0
    assert retry_delay(REFUSED, 0, NOW, NOW + timedelta(minutes=10), limits) is None
    assert (SendResult(204, "").is_accepted, SendResult(302, "").is_accepted, SendResult(410, "").wants_no_more) == (
        True,
        False,
        True,
    )


def test_each_secret_signs_the_same_id(tmp_path: Path) -> None:
    """A repeated webhook has the same id, and a signature of each secret, so that one can replace the other."""
    secrets = (new_secret(), new_secret())
    webhook = WebhookMessage("id-1", b"{}")
    first, again = webhook.headers(secrets, NOW), webhook.headers(secrets, NOW + timedelta(hours=1))
    assert first["webhook-id"] == again["webhook-id"] == "id-1"
    stamp = first["webhook-timestamp"]
    assert first["webhook-signature"].split() == [signature(one, "id-1", stamp, b"{}") for one in secrets]
    assert first["webhook-signature"] != again["webhook-signature"]
    file = tmp_path / "secret"
    file.write_text("\n".join(secrets))
    assert read_secrets(file) == secrets
    for text in ("", "password", f"{secrets[0]}\npassword"):
        file.write_text(text)
        with pytest.raises(HerdError):
            read_secrets(file)
    with pytest.raises(HerdError):
        read_secrets(tmp_path / "none")
