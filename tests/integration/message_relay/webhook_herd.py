"""A herd with webhooks: relays that may send to the loopback, users that create webhooks, workers that publish."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from message_relay.main import compose as compose_relay
from sandherd.client import Context, Herd, HerdError
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.client.test_client_subscriptions import event_of
from tests.polling import eventually

HOST: Final = "127.0.0.1"
ONE, TWO = "sbx-one", "sbx-two"


def relay_of(herd: Broker, **values: Any) -> Service:
    return compose_relay(herd.settings(Principal.MESSAGE_RELAY, **{"webhook_hosts": [HOST]} | values))


def context_of(herd: Broker, project: str = "default") -> Context:
    credentials = herd.credentials(Principal.CLIENT, project=project)
    return Context(nats_url=herd.url, credentials=credentials, project=project, home=herd.home / "nowhere")


async def create(user: Herd, name: str, url: str, **more: Any) -> str:
    """Create a webhook, once the services respond. Returns its secret; another one if the first reply was lost."""
    lost = False

    async def attempt() -> str | None:
        nonlocal lost
        try:
            return str((await user.create_webhook(name, url, **more)).secret)
        except HerdError as error:
            if error.problem.code == "conflict" and lost:
                return str((await user.rotate_webhook_secret(name)).secret)
            if error.problem.code not in {"unavailable", "busy"}:
                raise
            lost = True
            return None

    return str(await eventually(attempt, "the webhook is created"))


@asynccontextmanager
async def workers(herd: Broker) -> AsyncIterator[Callable[..., Any]]:
    """A function that publishes the events of sandboxes with these numbers."""
    async with AsyncExitStack() as stack:
        buses = {name: await stack.enter_async_context(herd.bus(Principal.WORKER, sandbox=name)) for name in (ONE, TWO)}

        async def publish(*numbers: int, sandboxes: tuple[str, ...] = (ONE, TWO)) -> None:
            for number in numbers:
                for name in sandboxes:
                    await buses[name].publish_event(event_of(number, sandbox=name))

        yield publish


async def is_idle(user: Herd, name: str) -> bool:
    found = await user.webhook(name)
    return found.waiting == 0 and found.position > 0 and found.accepted_at is not None
