"""Errors of forges: which are permanent, how long to wait, and what of a hostile text remains."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spawner.forges.faults import ForgeError, ForgeFault, reason_of, refusal
from spawner.forges.plain_text import plain
from spawner.forges.rate_limits import WRITE_INTERVAL, ForgeAccount, RateLimit

NOW = datetime(2026, 11, 27, 12, tzinfo=UTC)
EPOCH = str(int(NOW.timestamp()) + 600)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["message", "errors", "code", "x"]), inner)
    ),
)


@pytest.mark.parametrize(
    ("status", "headers", "body", "fault", "wait"),
    [
        (401, {}, None, ForgeFault.DENIED, None),
        (403, {}, {"message": "Resource not accessible by integration"}, ForgeFault.DENIED, None),
        (403, {"retry-after": "30"}, None, ForgeFault.UNAVAILABLE, 30),
        (403, {"retry-after": "Fri, 27 Nov 2026 12:01:00 GMT"}, None, ForgeFault.UNAVAILABLE, 60),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": EPOCH}, None, ForgeFault.UNAVAILABLE, 600),
        (429, {"ratelimit-remaining": "0", "ratelimit-reset": "20"}, None, ForgeFault.UNAVAILABLE, 20),
        (429, {"x-ratelimit-remaining": "4", "x-ratelimit-reset": EPOCH}, None, ForgeFault.UNAVAILABLE, 60),
        (403, {}, {"message": "You have exceeded a secondary rate limit"}, ForgeFault.UNAVAILABLE, 60),
        (403, {"retry-after": "9" * 40}, None, ForgeFault.UNAVAILABLE, 3600),
        (403, {"retry-after": "soon"}, None, ForgeFault.DENIED, None),
        (429, {"retry-after": "-5"}, None, ForgeFault.UNAVAILABLE, 60),
        (503, {"retry-after": "5"}, None, ForgeFault.UNAVAILABLE, 5),
        (503, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": EPOCH}, None, ForgeFault.UNAVAILABLE, None),
        (301, {"location": "https://evil"}, None, ForgeFault.NOT_FOUND, None),
        (404, {}, None, ForgeFault.NOT_FOUND, None),
        (410, {}, None, ForgeFault.NOT_FOUND, None),
        (405, {}, None, ForgeFault.REFUSED, None),
        (409, {}, None, ForgeFault.CONFLICT, None),
        (422, {}, None, ForgeFault.REFUSED, None),
        (423, {}, None, ForgeFault.REFUSED, None),
        (502, {}, "<html>", ForgeFault.UNAVAILABLE, None),
        (599, {}, None, ForgeFault.UNAVAILABLE, None),
    ],
)
def test_response_is_classified(
    status: int, headers: Mapping[str, str], body: Any, fault: ForgeFault, wait: float | None
) -> None:
    """Only an error that may disappear later is transient. The delay is the forge's, and at most an hour."""
    error = refusal("GET /x", status, headers, body, NOW)
    assert (error.fault, error.retry_after) == (fault, wait)
    assert error.permanent is (fault is not ForgeFault.UNAVAILABLE)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"message": "Validation Failed", "errors": [{"resource": "PullRequest", "field": "head", "code": "invalid"}]},
         "Validation Failed; PullRequest head invalid"),
        ({"message": ["Another open merge request"]}, "Another open merge request"),
        ({"message": {"base": ["a", "b"]}}, "base a; base b"),
        ({"error": "invalid_grant", "error_description": "expired"}, "expired"),
        ("<h1>\x00no\r\nway\u202e", "<h1>no way"),
        ([1, 2], ""),
        (None, ""),
    ],
)  # fmt: skip
def test_reason_is_in_one_plain_line(body: Any, reason: str) -> None:
    """The errors of GitHub, GitLab, OAuth and proxies are read."""
    assert reason_of(body) == reason


@settings(max_examples=200, deadline=None)
@given(body=JSON, headers=st.dictionaries(st.sampled_from(["retry-after", "ratelimit-reset", "x-ratelimit-reset",
       "ratelimit-remaining"]), st.text(max_size=30)), status=st.integers(300, 999))  # fmt: skip
def test_no_response_is_another_exception(body: Any, headers: dict[str, str], status: int) -> None:
    """For any response of a forge, the text is short and printable, and the delay is at most an hour."""
    error = refusal("GET /x", status, headers, body, NOW)
    assert len(error.reason) <= 300
    assert error.reason.isprintable() or "\xa0" not in error.reason
    assert "\n" not in str(error)
    assert error.retry_after is None or 0 <= error.retry_after <= 3600


def test_plain_text_has_no_invisible_characters() -> None:
    """Terminal escapes, changes of direction, tags and zero-width characters are removed. Whitespace is one space."""
    hidden = "a\x1b[0m\u202eb\u200bc\U000e0041d\n\te\u2028f\x7f\ud800"
    assert plain(hidden, 100) == "a[0mbcd e f"
    assert plain("x" * 1000, 10) == "x" * 9 + "…"


def test_limit_is_read_and_blocks_until_it_is_reset() -> None:
    """The headers of GitHub and GitLab are read. Malformed ones, and those of GraphQL, have no effect."""
    limit = RateLimit().after(
        {"x-ratelimit-remaining": "1", "x-ratelimit-limit": "60", "x-ratelimit-reset": EPOCH}, NOW
    )
    assert (limit.remaining, limit.limit, limit.resets_at) == (1, 60, NOW + timedelta(seconds=600))
    assert limit.wait_seconds(NOW) == 0
    spent = limit.after({"ratelimit-remaining": "0", "ratelimit-reset": EPOCH}, NOW)
    assert spent.wait_seconds(NOW) == 600
    assert spent.wait_seconds(NOW + timedelta(seconds=601)) == 0
    other = {"x-ratelimit-remaining": "9", "x-ratelimit-reset": EPOCH, "x-ratelimit-resource": "graphql"}
    for headers in (other, {"x-ratelimit-remaining": "x", "x-ratelimit-reset": EPOCH}, {"x-ratelimit-remaining": "5"}):
        assert spent.after(headers, NOW) == spent


class FakeTime:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = NOW
        self.slept: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += timedelta(seconds=seconds)


async def test_writes_are_a_second_apart_and_reads_are_not() -> None:
    """The delay begins at the end of the last write. A clock that is set back does not make it longer."""
    time = FakeTime()
    account = ForgeAccount(lambda: time.now, time.sleep)
    for write in (True, True, False, True):
        async with account.request(write=write):
            time.now += timedelta(seconds=0.25 if write else 0.5)
    assert time.slept == [0, WRITE_INTERVAL, WRITE_INTERVAL - 0.5]
    time.now -= timedelta(hours=1)
    async with account.request(write=True):
        pass
    assert time.slept[-1] == WRITE_INTERVAL


async def test_failed_write_counts_as_a_write() -> None:
    """A failed write may have taken effect."""
    time = FakeTime()
    account = ForgeAccount(lambda: time.now, time.sleep)
    with pytest.raises(ForgeError):
        async with account.request(write=True):
            raise ForgeError(ForgeFault.UNAVAILABLE, "lost")
    async with account.request(write=True):
        pass
    assert time.slept == [0, WRITE_INTERVAL]


async def test_no_request_is_sent_while_a_limit_blocks() -> None:
    """The request fails at once, with the delay."""
    time = FakeTime()
    account = ForgeAccount(lambda: time.now, time.sleep)
    account.limit = account.limit.blocked(30, NOW)
    for write in (False, True):
        with pytest.raises(ForgeError) as failed:
            async with account.request(write=write):
                pytest.fail("sent")
        assert failed.value.retry_after == 30


TOKEN = "ghp_" + "".join(chr(65 + number % 26) for number in range(36))


@pytest.mark.parametrize(
    "body",
    [
        {"message": "x" * 280 + TOKEN},
        {"message": "x" * 590 + TOKEN},
        {"message": "\u200b" * (20_000 - 20) + TOKEN},
        {"message": "\u200b".join(TOKEN)},
        {"message": "no", "errors": [{"resource": "x" * 70 + TOKEN, "field": TOKEN, "code": TOKEN}]},
        {"message": {"x" * 70 + TOKEN: ["no"]}},
        {"error": TOKEN, "error_description": ""},
        {"errors": [TOKEN, [TOKEN]]},
        "x" * 295 + TOKEN,
    ],
)
def test_no_part_of_a_credential_remains(body: Any) -> None:
    """That is so wherever the text is truncated, and for any characters within the credential."""
    reason = reason_of(body, TOKEN)
    assert TOKEN[:8] not in reason
    assert TOKEN[8:16] not in reason
