"""All services of a herd in this process, on a real broker and a real database, and requests to them."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from event_ingest.main import compose as compose_ingest
from gateway.main import compose as compose_gateway
from message_relay.main import compose as compose_relay
from monitor.main import compose as compose_monitor
from sandherd.client import Context
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from spawner.main import compose as compose_spawner
from tests.integration.spawner.conftest import end_sandboxes
from tests.patience import PATIENCE
from tests.preloaded_cli import preloaded_sandherd

P = Principal
PROJECT = "p1"
COMPOSE = {
    P.EVENT_INGEST: compose_ingest,
    P.MESSAGE_RELAY: compose_relay,
    P.MONITOR: compose_monitor,
    P.SPAWNER: compose_spawner,
    P.GATEWAY: compose_gateway,
}


@asynccontextmanager
async def running(broker: Broker, database: str, home: Path, **values: Any) -> AsyncIterator[dict[Principal, Service]]:
    """Run the services; `values` are settings of all of them."""
    options = {"home": home, "database_url": database, "check_interval": 0.2, "stop_grace": 5, **values}
    services = {name: compose(broker.settings(name, **options)) for name, compose in COMPOSE.items()}
    try:
        async with AsyncExitStack() as stack:
            for service in services.values():
                await stack.enter_async_context(service.running())
            yield services
    finally:
        await end_sandboxes(home)


def context(broker: Broker) -> Context:
    """The context of a client of the project."""
    credentials = broker.credentials(P.CLIENT, project=PROJECT)
    return Context(nats_url=broker.url, credentials=credentials, project=PROJECT, home=broker.home / "nowhere")


def sandherd(broker: Broker, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command with only this environment."""
    options = {
        "PATH": os.environ["PATH"],
        "NATS_URL": broker.url,
        "SANDHERD_HOME": str(broker.home / "nowhere"),
        "SANDHERD_CREDENTIALS": str(broker.credentials(P.CLIENT, project=PROJECT)),
    }
    return subprocess.run(
        [str(preloaded_sandherd()), *words],
        env=options | environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    """The output of a command with `-o json`."""
    return json.loads(done.stdout)


async def until(look: Callable[[], Awaitable[Any]], seconds: float = PATIENCE) -> Any:
    """Wait until a function finds something, and return that. It is called rarely, as a call sends several requests."""
    async with asyncio.timeout(seconds):
        while not (found := await look()):
            await asyncio.sleep(0.2)
    return found
