"""Webhooks: GitHub's deliveries of events, which a test sends when, as often and by whom it likes."""

import hashlib
import hmac
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import aiohttp

from tests.doubles.forges.forge_state import Account, Pull, Repository
from tests.doubles.forges.github_pull_shapes import PullShapes


@dataclass(frozen=True)
class Delivery:
    """An event that GitHub delivers; a redelivery has the same id."""

    event: str
    payload: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid4()))

    @property
    def body(self) -> bytes:
        """As it is sent."""
        return json.dumps(self.payload).encode()


class Webhooks:
    """Deliveries in the order of the changes. None is sent by itself: a test sends, repeats, delays or forges them."""

    def __init__(self, shapes: Callable[[], PullShapes]) -> None:
        self._shapes = shapes
        self.deliveries: list[Delivery] = []

    def pull(self, repository: Repository, pull: Pull, action: str, sender: Account) -> None:
        """An event `pull_request`."""
        shapes = self._shapes()
        state = {"merged": pull.merged is not None, "mergeable": None, "mergeable_state": "unknown"}
        self.add("pull_request", repository, sender, action=action, number=pull.number,
                 pull_request={**shapes.pull(repository, pull), **state})  # fmt: skip

    def add(self, event: str, repository: Repository, sender: Account, **payload: Any) -> Delivery:
        """Any event."""
        shapes = self._shapes()
        about = {"repository": shapes.repository(repository), "sender": shapes.account(sender)}
        self.deliveries.append(Delivery(event, {**payload, **about}))
        return self.deliveries[-1]

    async def send(self, delivery: Delivery, url: str, secret: str, *, signature: str | None = None) -> int:
        """Deliver it; the status of the response. A forger has another secret, or another signature."""
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
