"""Webhooks: GitHub's deliveries of events. A test decides when, how often and by whom they are sent."""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final
from uuid import uuid4

import aiohttp

from tests.doubles.forges.documents import published_document
from tests.doubles.forges.forge_state import Account, Pull, Repository
from tests.doubles.forges.github_pull_shapes import PullShapes
from tests.doubles.forges.openapi import Document

EVENTS: Final = (
    "pull-request/opened", "pull-request/synchronize", "pull-request/closed", "pull-request/enqueued",
    "pull-request/dequeued", "pull-request-review/submitted", "check-run/completed",
)  # fmt: skip


@cache
def document() -> Document:
    """GitHub's document of these events."""
    return Document(published_document("github-webhooks", EVENTS))


@dataclass(frozen=True)
class Delivery:
    """An event that GitHub delivers; a redelivery has the same id."""

    event: str
    payload: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid4()))

    @property
    def body(self) -> bytes:
        """The body as it is sent."""
        return json.dumps(self.payload).encode()


class Webhooks:
    """Deliveries in the order of the changes. None is sent by itself: a test sends, repeats, delays or forges it."""

    def __init__(self, shapes: Callable[[], PullShapes], violations: list[str]) -> None:
        self._shapes, self._violations = shapes, violations
        self.deliveries: list[Delivery] = []

    def pull(self, repository: Repository, pull: Pull, action: str, sender: Account) -> Delivery:
        """Add an event `pull_request`; its actions are `opened`, `synchronize`, `closed`, `enqueued` and `dequeued`."""
        whole = self._shapes().full_pull(repository, pull, None, "unknown")
        more: dict[str, Any] = {"before": "0" * 40, "after": pull.head_sha} if action == "synchronize" else {}
        more |= {"reason": "MERGE" if pull.merged else "CI_FAILURE"} if action == "dequeued" else {}
        return self.add("pull_request", action, repository, sender, number=pull.number, pull_request=whole, **more)

    def add(self, event: str, action: str, repository: Repository, sender: Account, **payload: Any) -> Delivery:
        """Add an event of `EVENTS`. One that is not as published fails the test that uses GitHub."""
        shapes = self._shapes()
        about = {"repository": shapes.repository(repository), "sender": shapes.account(sender)}
        self.deliveries.append(Delivery(event, {"action": action, **payload, **about}))
        name = f"{event}/{action}".replace("_", "-")
        described = document().by_id[name]
        found = described.mismatches_of_request(self.deliveries[-1].payload, present=True)
        self._violations += [f"webhook {name}: {one}" for one in found]
        return self.deliveries[-1]

    async def send(self, delivery: Delivery, url: str, secret: str, *, signature: str | None = None) -> int:
        """Deliver an event; returns the status of the response. A forger uses another secret or another signature."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "GitHub-Hookshot/0000000",
            "X-GitHub-Event": delivery.event,
            "X-GitHub-Delivery": delivery.id,
            "X-Hub-Signature-256": sign(delivery.body, secret) if signature is None else signature,
        }
        async with aiohttp.ClientSession() as session, session.post(url, data=delivery.body, headers=headers) as sent:
            return sent.status


def sign(body: bytes, secret: str) -> str:
    """The value of X-Hub-Signature-256."""
    return "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
