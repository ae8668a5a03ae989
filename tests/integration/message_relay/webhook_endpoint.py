"""An HTTP server that receives webhooks, and verifies their signatures as a receiver does."""

import asyncio
import base64
import hashlib
import hmac
import json
from collections import defaultdict
from typing import Any

from aiohttp import web


def is_signed(secret: str, headers: Any, body: bytes) -> bool:
    """Verify a signature as the reference implementation of Standard Webhooks does."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    content = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.{body.decode()}"
    expected = base64.b64encode(hmac.new(key, content.encode(), hashlib.sha256).digest()).decode()
    versions = (one.split(",", 1) for one in headers["webhook-signature"].split(" "))
    return any(version == "v1" and hmac.compare_digest(found, expected) for version, found in versions)


class Endpoint:
    """Receives webhooks, each at its own path, and responds with the next of its `statuses`, then with 200."""

    def __init__(self) -> None:
        self.url = ""
        self.ids: dict[str, list[str]] = defaultdict(list)
        self.accepted: dict[str, list[tuple[str, int]]] = defaultdict(list)
        self.types: dict[str, list[str]] = defaultdict(list)
        self.statuses: dict[str, list[int]] = defaultdict(list)
        self.last: dict[str, tuple[Any, bytes]] = {}
        self.refused: dict[str, dict[int, int]] = defaultdict(dict)
        """The status of the response to each refused event, by number."""
        self.held = asyncio.Event()

    async def receive(self, request: web.Request) -> web.Response:
        name, body = request.match_info["name"], await request.read()
        event = json.loads(body)
        assert event["id"] == request.headers["webhook-id"]
        self.last[name] = request.headers, body
        self.ids[name].append(event["id"])
        self.types[name].append(event["type"])
        if name == "silent":
            await self.held.wait()
        status = self.statuses[name].pop(0) if self.statuses[name] else 200
        status = self.refused[name].get(event.get("sequence", 0), status)
        if status == 200 and "sequence" in event:
            self.accepted[name].append((event["subject"], event["sequence"]))
        return web.Response(status=status, headers={"Location": f"{self.url}/elsewhere"} if status == 302 else {})

    def of(self, name: str, sandbox: str) -> list[int]:
        """The numbers of the accepted events of a sandbox, in the order of their first acceptance.

        On a slow machine a lease may expire: then some events are sent again.
        """
        return list(dict.fromkeys(number for subject, number in self.accepted[name] if subject == sandbox))

    def has(self, name: str, count: int) -> bool:
        """Whether this number of different events was accepted."""
        return len(set(self.accepted[name])) >= count
