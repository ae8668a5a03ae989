"""Webhooks of forges: their verification, the changed pull requests that they name, and repeated deliveries.

A webhook only makes the spawner poll earlier: a forged one is refused, and a repeated or late one causes at most
another poll. Of its content, only the repository, branch, commit and number are used.
"""

import hashlib
import hmac
import json
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import ValidationError

from sandherd.contracts.requests import CheckPullRequests
from sandherd.webhook_signatures import PREFIX, signature

ForgeName = Literal["github", "gitlab", "gitea", "forgejo"]
MAX_WEBHOOK: Final = 2 * 1024 * 1024
"""Maximum size of a webhook, in bytes. The change in a larger one is found by polling."""
TOLERANCE: Final = timedelta(minutes=5)
"""The maximum difference between a signed timestamp and the present time."""
_MAX_SECRET_CHARACTERS: Final = 4096
_MAX_DELIVERIES: Final = 4096
_MAX_VALUES: Final = 50
"""Maximum values that are read at one path, and used of one kind."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_BRANCH: Final = re.compile(r"[^\s\x00-\x1f\x7f~^:?*\[\\]{1,200}")
_URL: Final = re.compile(r"https?://[\x21-\x7e]{1,2000}")


@dataclass(frozen=True)
class PayloadPaths:
    """The paths of the used values in a forge's payload. A list on a path stands for all of its entries."""

    urls: tuple[str, ...]
    numbers: tuple[str, ...]
    branches: tuple[str, ...]
    commits: tuple[str, ...]
    delivery: tuple[str, ...]
    """The headers that may have the id of a delivery."""


_CHECK_OBJECTS: Final = ("check_run", "check_suite", "workflow_run")  # each has the result of a check
_GITHUB: Final = PayloadPaths(
    urls=("repository.clone_url", "repository.html_url"),
    numbers=("pull_request.number", *(f"{name}.pull_requests.number" for name in _CHECK_OBJECTS)),
    branches=("pull_request.head.ref", "check_suite.head_branch", "workflow_run.head_branch", "branches.name"),
    commits=(
        "pull_request.head.sha",
        *(f"{name}.head_sha" for name in _CHECK_OBJECTS),
        "sha",
        "commit.sha",
        "commit.id",
    ),
    delivery=("x-github-delivery", "x-gitea-delivery", "x-forgejo-delivery"),
)
_GITLAB: Final = PayloadPaths(
    urls=("project.git_http_url", "project.web_url"),
    numbers=("object_attributes.iid", "merge_request.iid"),
    branches=("object_attributes.source_branch", "object_attributes.ref", "merge_request.source_branch"),
    commits=("object_attributes.last_commit.id", "object_attributes.sha", "commit.id", "sha"),
    delivery=("webhook-id", "idempotency-key", "x-gitlab-event-uuid"),
)
PATHS_BY_FORGE: Final[Mapping[ForgeName, PayloadPaths]] = {
    "github": _GITHUB,
    "gitea": _GITHUB,
    "forgejo": _GITHUB,
    "gitlab": _GITLAB,
}


def is_authentic(forge: ForgeName, headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> bool:
    """Whether a webhook was sent by a holder of the secret. Comparisons take the same time for every signature."""
    if forge != "gitlab":
        presented = _hex_signature(headers)
        return hmac.compare_digest(presented, hmac.digest(secret.encode(), body, "sha256").hex())
    if secret.startswith(PREFIX) or "webhook-signature" in headers:
        return _is_signed(headers, body, secret, now)
    return hmac.compare_digest(headers.get("x-gitlab-token", "").encode(), secret.encode())


def _hex_signature(headers: Mapping[str, str]) -> str:
    """The signature of GitHub, Gitea or Forgejo in hexadecimal; empty if there is none."""
    for name in ("x-hub-signature-256", "x-gitea-signature", "x-forgejo-signature"):
        if name in headers:
            presented = headers[name].removeprefix("sha256=")
            return presented if presented.isascii() else ""
    return ""


def _is_signed(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> bool:
    """Whether one of the signatures of Standard Webhooks is valid, and the timestamp within `TOLERANCE` of `now`."""
    timestamp, identifier = headers.get("webhook-timestamp", ""), headers.get("webhook-id", "")
    if (
        not re.fullmatch(r"[0-9]{1,12}", timestamp)
        or abs(now - datetime.fromtimestamp(int(timestamp), UTC)) > TOLERANCE
    ):
        return False
    expected = signature(secret, identifier, timestamp, body)
    presented = headers.get("webhook-signature", "").encode().split(b" ")[:16]
    return any(hmac.compare_digest(candidate, expected.encode()) for candidate in presented)


def secret_of(folder: Path | None, name: str) -> str:
    """The secret of a webhook. If there is none, a random text, so that the name is refused like a wrong signature."""
    try:
        secret = (folder / name).read_text()[:_MAX_SECRET_CHARACTERS].strip() if folder is not None else ""
    except (OSError, ValueError):
        secret = ""
    return secret or secrets.token_hex(32)


def change_in(forge: ForgeName, body: bytes) -> CheckPullRequests | None:
    """The changed pull requests that a webhook names. None if it names none. Raises `ValueError` if it is not JSON."""
    try:
        payload = json.loads(body)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    paths = PATHS_BY_FORGE[forge]
    urls = [url for url in _texts_at(payload, paths.urls) if _URL.fullmatch(url)]
    # `type` excludes booleans. Larger numbers are not exact in JSON.
    numbers = [number for number in _values_at(payload, paths.numbers) if type(number) is int and 0 < number < 2**53]
    branches = [name for name in _texts_at(payload, paths.branches) if _BRANCH.fullmatch(name)]
    commits = [name for name in _texts_at(payload, paths.commits) if _COMMIT.fullmatch(name)]
    if not urls or not (numbers or branches or commits):
        return None
    try:
        return CheckPullRequests(
            repositories=urls[:_MAX_VALUES],
            numbers=numbers[:_MAX_VALUES],
            branches=branches[:_MAX_VALUES],
            commits=commits[:_MAX_VALUES],
        )
    except ValidationError:
        return None  # no task can have such a URL or branch


def _texts_at(payload: Any, paths: tuple[str, ...]) -> list[str]:
    return [value for value in _values_at(payload, paths) if isinstance(value, str)]


def _values_at(payload: Any, paths: tuple[str, ...]) -> list[Any]:
    """The texts and numbers at these paths, without repetitions, at most 50 of each path."""
    unique: dict[Any, None] = {}
    for path in paths:
        values = (value for value in _values(payload, path.split(".")) if type(value) in (str, int))
        unique |= dict.fromkeys(islice(values, _MAX_VALUES))
    return list(unique)


def _values(node: Any, path: list[str]) -> Iterator[Any]:
    if isinstance(node, list):
        for item in node[:_MAX_VALUES]:
            yield from _values(item, path)
    elif not path:
        yield node
    elif isinstance(node, dict) and path[0] in node:
        yield from _values(node[path[0]], path[1:])


class RecentDeliveries:
    """The last deliveries that this replica has handled."""

    def __init__(self, max_deliveries: int = _MAX_DELIVERIES) -> None:
        self._handled: OrderedDict[bytes, None] = OrderedDict()
        self._max_deliveries = max_deliveries

    def key(self, forge: ForgeName, name: str, headers: Mapping[str, str], body: bytes) -> bytes:
        """The key of a delivery: a hash of its id, or else of its content. A repeated delivery has the same key."""
        id_ = next((headers[field] for field in PATHS_BY_FORGE[forge].delivery if headers.get(field)), None)
        content = body if id_ is None else id_.encode()
        return hashlib.sha256(b"\0".join([forge.encode(), name.encode(), content])).digest()

    def was_handled(self, key: bytes) -> bool:
        """Whether this delivery was handled."""
        return key in self._handled

    def add(self, key: bytes) -> None:
        """Record that a delivery was handled. The oldest records are dropped."""
        self._handled[key] = None
        while len(self._handled) > self._max_deliveries:
            self._handled.popitem(last=False)
