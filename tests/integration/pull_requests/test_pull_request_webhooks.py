"""Webhooks of a forge through the gateway: they make a poll due, and forged or repeated ones change nothing."""

import json
from dataclasses import replace
from pathlib import Path

from nats.aio.msg import Msg

from gateway.main import compose
from sandherd.contracts.errors import ContractError
from sandherd.contracts.names import FLEET
from sandherd.contracts.requests import CheckPullRequests
from sandherd.contracts.subjects import Principal, request_subject
from sandherd.service.requests import IncomingRequest
from sandherd.stack.broker import Broker
from spawner.pull_requests.pull_request_requests import MIN_POLL_INTERVAL
from spawner.pull_requests.request_handlers import PullRequestHandler
from tests.doubles.forges.github_webhooks import Webhooks
from tests.integration.forges.sites import GithubSite
from tests.integration.pull_requests.world import READY, World
from tests.polling import eventually

SECRET = "correct horse"


async def respond(world: World) -> None:
    """Reply to the gateway as the spawner does."""
    handler = PullRequestHandler(world.live, world.forges)

    async def on_message(message: Msg) -> None:
        request = CheckPullRequests.model_validate_json(message.data)
        try:
            found = await handler.check(IncomingRequest(request, {"project": FLEET}))
        except ContractError as error:
            await message.respond(json.dumps({"error": error.problem.model_dump(mode="json")}).encode())
        else:
            await message.respond(json.dumps({"ok": found.model_dump(mode="json")}).encode())

    await world.bus.client.subscribe(request_subject(CheckPullRequests.type, FLEET), cb=on_message)
    await world.bus.flush()


async def test_webhook_has_the_forge_polled_at_once(herd: Broker, world: World, tmp_path: Path) -> None:
    """A verified delivery makes the poll due; others are refused, or have no effect."""
    assert isinstance(world.site, GithubSite)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "shop").write_text(f"{SECRET}\n")
    port = tmp_path / "api.port"
    settings = herd.settings(Principal.GATEWAY, gateway_port_file=port, gateway_webhook_secrets=tmp_path / "secrets")
    await respond(world)
    await world.branch(READY)
    await world.run()
    before = (await world.poll()).pull
    assert before is not None
    github, hooks = world.site.github, world.site.github.webhooks
    async with compose(settings).running() as service:
        await eventually(lambda: not service.health.problems(), "the gateway is ready")
        url = f"http://127.0.0.1:{port.read_text()}/webhooks/github"
        await _check_forged_deliveries(hooks, url)
        assert (await world.record()).pull == before

        pull = world.site.shop.pulls[1]
        github.record_merge(world.site.shop, pull, world.site.head(), github.account("ada"))
        merged = hooks.deliveries[-1]
        assert await hooks.send(merged, f"{url}/shop", SECRET) == 202
        due = (await world.record()).pull
        assert due is not None
        assert due.poll_at is not None
        assert due.poll_at <= world.live.now() + MIN_POLL_INTERVAL
        assert await hooks.send(merged, f"{url}/shop", SECRET) == 204
        await _check_other_deliveries(hooks, f"{url}/shop")
    world.pass_time(MIN_POLL_INTERVAL.total_seconds())
    await world.run()
    await world.published("branch.merged", 1)


async def _check_forged_deliveries(hooks: Webhooks, url: str) -> None:
    """Check deliveries with another secret, an invalid signature, or for another webhook or forge."""
    opened = hooks.deliveries[0]
    assert await hooks.send(opened, f"{url}/shop", "another secret") == 401
    assert await hooks.send(opened, f"{url}/shop", SECRET, signature="sha256=" + "0" * 64) == 401
    assert await hooks.send(opened, f"{url}/unknown", SECRET) == 401
    assert await hooks.send(opened, f"{url}/..%2fshop", SECRET) in {401, 404, 422}
    assert await hooks.send(opened, url.replace("github", "other") + "/shop", SECRET) == 422


async def _check_other_deliveries(hooks: Webhooks, url: str) -> None:
    """Check deliveries about another repository, or about no pull request."""
    merged = hooks.deliveries[-1]
    other = json.loads(merged.body)
    other["repository"] |= {"clone_url": "https://github.com/else/shop.git", "html_url": "https://github.com/else/shop"}
    assert await hooks.send(replace(merged, payload=other, id="2"), url, SECRET) == 204
    assert await hooks.send(replace(merged, payload={"zen": "x"}, id="3"), url, SECRET) == 204
