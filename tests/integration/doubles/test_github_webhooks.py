"""The double of GitHub: webhooks that arrive twice, late, or from a forger."""

import hashlib
import hmac
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.doubles.forges.github import GitHub
from tests.http_servers import stop_server
from tests.integration.doubles.conftest import Api

SECRET = "a webhook's secret"


class Receiver:
    """A gateway that verifies signatures as GitHub documents it."""

    def __init__(self) -> None:
        self.url, self.received = "", list[tuple[str, str, Any]]()

    async def receive(self, request: web.Request) -> web.Response:
        """Accept a delivery that is signed with the secret."""
        expected = "sha256=" + hmac.new(SECRET.encode(), await request.read(), hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, request.headers.get("X-Hub-Signature-256", "")):
            return web.Response(status=401)
        names = ("X-GitHub-Event", "X-GitHub-Delivery")
        event, delivery = (request.headers[name] for name in names)
        self.received.append((event, delivery, await request.json()))
        return web.Response(status=202)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver that listens."""
    made, app = Receiver(), web.Application(client_max_size=1 << 20)
    app.router.add_post("/", made.receive)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = "http://{}:{}/".format(*runner.addresses[0])
    yield made
    await stop_server(runner)


async def test_deliveries(api: Api, opened: dict[str, Any], github: GitHub, receiver: Receiver) -> None:
    """The test decides when and how often a delivery is sent; a repetition has the same id."""
    await api("PUT", "/repos/team/shop/pulls/1/merge", {"sha": opened["head"]["sha"]})
    opening, closing = github.webhooks.deliveries
    for delivery in (closing, opening, closing):
        assert await github.webhooks.send(delivery, receiver.url, SECRET) == 202
    assert [one[1] for one in receiver.received] == [closing.id, opening.id, closing.id]
    event, _, payload = receiver.received[0]
    assert (event, payload["action"], payload["number"]) == ("pull_request", "closed", 1)
    assert payload["pull_request"]["merged"] is True
    assert payload["repository"]["full_name"] == "team/shop"


@pytest.mark.parametrize("forged", [{"secret": "another"}, {"secret": SECRET, "signature": ""}])
async def test_forged_delivery(opened: dict[str, Any], github: GitHub, receiver: Receiver, forged: Any) -> None:
    """A delivery with another secret or without a signature is refused."""
    assert await github.webhooks.send(github.webhooks.deliveries[0], receiver.url, **forged) == 401
    assert receiver.received == []
