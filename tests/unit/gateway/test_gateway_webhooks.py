"""Webhooks of forges: which are authentic, what they are about, and which were handled before."""

import hashlib
import hmac
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gateway.webhooks import ForgeName, RecentDeliveries, _values_at, change_in, is_authentic, secret_of
from sandherd.webhook_signatures import signature

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
BODY = b'{"a": 1}'
HEX = hmac.new(b"secret", BODY, hashlib.sha256).hexdigest()
STAMP = str(int(NOW.timestamp()))
SHA = "c" * 40


@pytest.mark.parametrize(
    ("forge", "headers"),
    [
        ("github", {"x-hub-signature-256": f"sha256={HEX}"}),
        ("gitea", {"x-gitea-signature": HEX}),
        ("forgejo", {"x-forgejo-signature": HEX}),
        ("gitlab", {"x-gitlab-token": "secret"}),
        ("gitlab", {"webhook-id": "m", "webhook-timestamp": STAMP,
                    "webhook-signature": "v1,AAAA " + signature("secret", "m", STAMP, BODY)}),
    ],
)  # fmt: skip
def test_only_a_holder_of_the_secret_is_authentic(forge: ForgeName, headers: dict[str, str]) -> None:
    """A webhook with another secret, content or signature, an invalid signature, or none is refused."""
    assert is_authentic(forge, headers, BODY, "secret", NOW)
    assert not is_authentic(forge, headers, BODY, "Secret", NOW)
    assert not is_authentic(forge, {}, BODY, "secret", NOW)
    last = list(headers)[-1]
    for wrong in ("", "sha256=", "é" * 64, headers[last][:-1], headers[last] + "0"):
        assert not is_authentic(forge, headers | {last: wrong}, BODY, "secret", NOW)
    if "x-gitlab-token" not in headers:
        assert not is_authentic(forge, headers, BODY + b" ", "secret", NOW)


def test_signed_webhook_is_not_accepted_later() -> None:
    """A webhook whose signed timestamp is minutes old or in the future is refused."""
    for seconds, accepted in ((299, True), (301, False), (-301, False)):
        at = str(int((NOW - timedelta(seconds=seconds)).timestamp()))
        headers = {"webhook-id": "m", "webhook-timestamp": at, "webhook-signature": signature("s", "m", at, BODY)}
        assert is_authentic("gitlab", headers, BODY, "s", NOW) is accepted
    signed = {"webhook-id": "m", "webhook-timestamp": "x", "webhook-signature": "v1,"}
    assert not is_authentic("gitlab", signed | {"x-gitlab-token": "s"}, BODY, "s", NOW)
    assert not is_authentic("gitlab", {"x-gitlab-token": "whsec_AAAA"}, BODY, "whsec_AAAA", NOW)


def test_signature_is_that_of_standard_webhooks() -> None:
    """The example of the specification's libraries is accepted."""
    found = signature(
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}'
    )
    assert found == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_few_values_of_a_webhook_are_read() -> None:
    """Nested lists may name 100,000 different values. Comparing all of them would block the gateway: few are read."""
    payload = {"a": [[number, number + 100] for number in range(50)], "b": [[7, True, None, {}, [[8]]], "x"]}
    assert _values_at(payload, ("b", "b")) == [7, 8, "x"]
    assert len(_values_at(payload, ("a",))) == 50
    assert len(_values_at(payload, ("a", "b"))) == 51


def test_change_is_what_the_forge_names() -> None:
    """Numbers, branches and commits of a repository are read. Any other content is about no pull request."""
    repository = {"clone_url": "https://h/a/b.git", "html_url": "https://h/a/b"}
    pull = {"number": 7, "head": {"ref": "feature/x", "sha": SHA}}
    found = change_in("github", _text(repository=repository, pull_request=pull))
    assert found is not None
    assert (found.numbers, found.branches, found.commits) == ([7], ["feature/x"], [SHA])
    assert found.repositories == ["https://h/a/b.git", "https://h/a/b"]
    check = {"head_sha": SHA, "pull_requests": [{"number": 7}, {"number": 8}]}
    checked = change_in("github", _text(repository=repository, check_run=check))
    assert checked is not None
    assert checked.numbers == [7, 8]
    merge = {"iid": 3, "source_branch": "f", "last_commit": {"id": SHA}}
    project = {"git_http_url": "https://l/a/b.git"}
    gitlab = change_in("gitlab", _text(project=project, object_attributes=merge))
    assert gitlab is not None
    assert (gitlab.numbers, gitlab.branches, gitlab.commits) == ([3], ["f"], [SHA])
    for payload in (
        {"repository": repository},
        {"pull_request": pull},
        {"repository": repository, "pull_request": {"number": "7", "head": {"ref": "a b", "sha": "x"}}},
        {"repository": [repository] * 3, "pull_request": {"number": True}},
        {"repository": {"clone_url": "file:///etc"}, "pull_request": pull},
    ):
        assert change_in("github", _text(**payload)) is None
    for text in (b"", b"{", b"[" * 100_000, b"\xff"):
        with pytest.raises(ValueError):  # noqa: PT011  # of any kind: the route names it
            change_in("github", text)
    assert change_in("github", b"[1]") is None


def _text(**payload: Any) -> bytes:
    return json.dumps(payload).encode()


def test_delivery_is_handled_once_and_memory_is_limited() -> None:
    """A delivery is recognised by its id, else by its content; the same id of another webhook is another delivery."""
    deliveries = RecentDeliveries(max_deliveries=2)
    keys = [deliveries.key("github", name, {"x-github-delivery": one}, b"") for name in "ab" for one in "12"]
    assert len(set(keys)) == 4
    assert deliveries.key("github", "a", {}, b"1") != deliveries.key("github", "a", {}, b"2")
    for key in keys:
        assert not deliveries.was_handled(key)
        deliveries.add(key)
        assert deliveries.was_handled(key)
    assert [deliveries.was_handled(key) for key in keys] == [False, False, True, True]


def test_webhook_without_a_secret_has_none_that_can_be_guessed(tmp_path: Path) -> None:
    """Without a usable secret (an empty file, a missing file, no folder) each request has another random secret."""
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "ci").write_text(" s \n")
    assert secret_of(tmp_path, "ci") == "s"
    found = {secret_of(folder, name) for folder, name in ((None, "ci"), (tmp_path, "no"), (tmp_path, "empty"))}
    assert len(found) == 3
    assert all(len(one) == 64 for one in found)
