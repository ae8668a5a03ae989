"""Errors of forges: the kinds of faults, and the classification of responses. Pure."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Any, Final

from spawner.forges.plain_text import plain, without_controls

_MAX_REASON_CHARACTERS: Final = 300
_MAX_READ_CHARACTERS: Final = 20_000
"""Maximum characters of a forge's text that are read."""
MASK: Final = "***"
"""The text in place of a credential."""
_SECONDARY_SECONDS: Final = 60.0
"""The delay after a response about a secondary rate limit without a delay. GitHub documents that it is a minute."""
_NOT_SEEN_SECONDS: Final = 2.0
"""The delay until a request is retried because the forge does not see a new object yet."""
_MAX_DELAY_SECONDS: Final = 3600.0
"""Maximum delay that a forge may require, and maximum time until a reset, because GitHub's limits are per hour."""
_MIN_UNIX_TIME: Final = 1_000_000_000
"""A reset above this number is a Unix time (GitHub, GitLab). Another one is in seconds from now (the IETF's draft)."""
_LIMIT_PATTERN: Final = re.compile(r"rate limit|abuse detection|too many requests|temporarily blocked", re.IGNORECASE)
_FORBIDDEN, _NOT_FOUND, _DELETED, _TIMED_OUT, _CONFLICT, _TOO_MANY, _FIRST_SERVER_ERROR = (
    403,
    404,
    410,
    408,
    409,
    429,
    500,
)


class ForgeFault(StrEnum):
    """The kinds of failure, as those of git (`GitFault`). Decisions are based on the kind, never on a message."""

    REFUSED = "refused"
    """The forge never accepts this, or the input is invalid."""
    DENIED = "denied"
    """The credential is missing, invalid, expired, or does not permit this."""
    NOT_FOUND = "not_found"
    """The object does not exist, or the credential can't see it."""
    CONFLICT = "conflict"
    """The object is not in the expected state."""
    NOT_SEEN = "not_seen"
    """The forge does not see a new branch or pull request yet. It will see it soon, unless the object was deleted."""
    UNAVAILABLE = "unavailable"
    """The forge does not respond, or a rate limit is reached; a retry may succeed."""


class ForgeError(Exception):
    """A request to a forge failed. `fault` is the kind of failure, `status` the HTTP status, if there was a response.

    `reason` is the forge's text. Its length is limited and it has no control characters, but it may be hostile.
    `retry_after` is the delay in seconds before the next request, if one is required. No part of the error contains a
    credential.
    """

    def __init__(
        self,
        fault: ForgeFault,
        message: str,
        *,
        status: int | None = None,
        reason: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(f"{message}: {reason}" if reason else message)
        self.fault = fault
        self.status = status
        self.reason = reason
        self.retry_after = retry_after

    @property
    def permanent(self) -> bool:
        """Whether a retry can't succeed."""
        return self.fault not in {ForgeFault.UNAVAILABLE, ForgeFault.NOT_SEEN}


def refusal(
    request: str, status: int, headers: Mapping[str, str], body: Any, now: datetime, *, secret: str = ""
) -> ForgeError:
    """The error for a response that is not a success. `headers` have names in lower case, `body` is the parsed JSON.

    `request` names the request in the message. `secret` is the credential, which is masked in the forge's text.
    """
    reason = reason_of(body, secret)
    wait = wait_seconds(status, headers, reason, now)
    fault = ForgeFault.UNAVAILABLE if wait is not None else fault_of(status)
    return ForgeError(fault, f"{request}: HTTP status {status}", status=status, reason=reason, retry_after=wait)


def not_seen(refused: ForgeError) -> ForgeError:
    """The error in place of `refused`, whose cause is that a branch or pull request was created just before."""
    return ForgeError(
        ForgeFault.NOT_SEEN,
        "the forge does not see the branch or its pull request yet",
        status=refused.status,
        reason=refused.reason,
        retry_after=_NOT_SEEN_SECONDS,
    )


def fault_of(status: int) -> ForgeFault:
    """The fault for an HTTP status, if the response is not about a rate limit."""
    if status in {401, 402, _FORBIDDEN, 407, 451}:
        return ForgeFault.DENIED
    if status in {301, 302, 303, 307, 308, _NOT_FOUND, _DELETED}:
        return ForgeFault.NOT_FOUND  # redirects are not followed, so that no credential is sent elsewhere
    if status in {_CONFLICT, 412}:
        return ForgeFault.CONFLICT
    if status in {_TIMED_OUT, 425, _TOO_MANY} or status >= _FIRST_SERVER_ERROR:
        return ForgeFault.UNAVAILABLE
    return ForgeFault.REFUSED


def wait_seconds(status: int, headers: Mapping[str, str], reason: str, now: datetime) -> float | None:
    """The delay in seconds that a response requires before the next request; None if it is not about a rate limit."""
    if status not in {_FORBIDDEN, _TOO_MANY, 503}:
        return None
    wait = _retry_after(headers, now)
    if wait is None and status != 503 and header(headers, "remaining") == "0":
        resets_at = reset_time(headers, now)
        wait = None if resets_at is None else (resets_at - now).total_seconds()
    if wait is None and (status == _TOO_MANY or (status == _FORBIDDEN and _LIMIT_PATTERN.search(reason))):
        wait = _SECONDARY_SECONDS
    return None if wait is None else min(max(wait, 0.0), _MAX_DELAY_SECONDS)


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    value = headers.get("retry-after", "")[:64]
    if value.isascii() and value.isdecimal():
        return float(value[:9])
    try:
        return (parsedate_to_datetime(value).astimezone(UTC) - now).total_seconds()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def reset_time(headers: Mapping[str, str], now: datetime) -> datetime | None:
    """When the primary rate limit is reset, at most an hour from now; None if no header states it."""
    value = header(headers, "reset")
    if not (value.isascii() and value.isdecimal() and len(value) <= 12):
        return None
    at = float(value) if int(value) > _MIN_UNIX_TIME else now.timestamp() + float(value)
    return datetime.fromtimestamp(min(at, now.timestamp() + _MAX_DELAY_SECONDS), UTC)


def header(headers: Mapping[str, str], name: str) -> str:
    """A header of the primary rate limit, by GitHub's or GitLab's name; empty if there is none."""
    return headers.get(f"x-ratelimit-{name}") or headers.get(f"ratelimit-{name}") or ""


def reason_of(body: Any, secret: str = "") -> str:
    """The text of an error's body: `message`, which GitLab also sends as a list or an object, and GitHub's `errors`.

    `secret` is a credential. It is masked before the text is truncated, so that no part of the credential remains.
    """
    if not isinstance(body, Mapping):
        return plain(_masked(body, secret), _MAX_REASON_CHARACTERS) if isinstance(body, str) else ""
    parts = [body.get("message") or body.get("error_description") or body.get("error"), body.get("errors")]
    texts = (text for part in parts for text in _texts(part, secret))
    return plain("; ".join(texts), _MAX_REASON_CHARACTERS)


def _masked(text: str, secret: str) -> str:
    """The beginning of a text, without control characters and without the credential `secret`.

    If the text is truncated, its end may be a part of the credential. So as many characters are removed at the end.
    """
    clean = without_controls(text[:_MAX_READ_CHARACTERS])
    if secret:
        clean = clean.replace(secret, MASK)
        if len(text) > _MAX_READ_CHARACTERS:
            clean = clean[: -len(secret)]
    return clean[: 2 * _MAX_REASON_CHARACTERS]


def _texts(part: Any, secret: str, depth: int = 3) -> list[str]:
    if isinstance(part, str):
        return [_masked(part, secret)]
    if isinstance(part, list) and depth:
        return [text for each in part[:10] for text in _texts(each, secret, depth - 1)]
    if isinstance(part, Mapping) and depth:
        if "message" in part:
            return _texts(part["message"], secret, depth - 1)
        if "code" in part:
            parts = (part.get(name) for name in ("resource", "field", "code"))
            return [" ".join(_masked(text, secret)[:80] for text in parts if isinstance(text, str))]
        pairs = list(part.items())[:10]
        return [
            f"{_masked(key, secret)[:80]} {text}" for key, value in pairs for text in _texts(value, secret, depth - 1)
        ]
    return []
