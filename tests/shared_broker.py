"""One broker for many tests of a process, emptied between them: to start one is most of what a short test costs.

Each test has a home of its own, with the same keys. A test that ends the server, changes what is provisioned, or
revokes a user's credential is marked `own_broker`. A `conftest.py` that imports `herd` and `shared_broker` has them.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Self

import pytest
from nats.js import JetStreamContext

from sandherd.stack.broker import Broker
from sandherd.stack.nats import NatsServer
from tests.run_reports import SERVERS

_STORE: Final = "nats"
_OWN: Final = "the broker is that of other tests, too: mark this test `own_broker`"


@asynccontextmanager
async def own_broker(provisioned: Path) -> AsyncIterator[Broker]:
    """A broker of a test's own, on a copy of what was provisioned once."""
    directory = Path(tempfile.mkdtemp(prefix="herd-"))
    try:
        shutil.copytree(provisioned, directory, dirs_exist_ok=True)
        broker = Broker(directory)
        broker.initialise()
        await broker.nats.start()
        yield broker
        await broker.kill()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


class _View(Broker):
    """The broker of one test: its home, and the server of all."""

    def __init__(self, home: Path, url: str) -> None:
        super().__init__(home)
        self._url = url

    @property
    def nats(self) -> NatsServer:
        raise AssertionError(_OWN)

    @property
    def url(self) -> str:
        return self._url

    async def start(self) -> None:
        raise AssertionError(_OWN)

    stop = kill = restart = provision = start


class SharedBroker:
    """A server on a copy of a provisioned one, and what it has at its start."""

    def __init__(self, provisioned: Path) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="shared-"))
        shutil.copytree(provisioned, self._home, dirs_exist_ok=True)
        self._broker = Broker(self._home)
        self._provisioned: dict[str, tuple[dict[str, Any], frozenset[str]]] = {}

    async def start(self) -> Self:
        """Start it."""
        self._broker.initialise()
        await self._broker.nats.start()
        SERVERS.add(self._broker.child.pid)
        async with self._broker.provisioner() as jetstream:
            for stream in await _streams(jetstream):
                name = stream["config"]["name"]
                self._provisioned[name] = stream["config"], await _consumers(jetstream, name)
        return self

    async def end(self) -> None:
        """End it, and remove its files."""
        SERVERS.discard(self._broker.child.pid)
        await self._broker.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @asynccontextmanager
    async def view(self) -> AsyncIterator[Broker]:
        """The broker for one test, with nothing in it."""
        home = Path(tempfile.mkdtemp(prefix="herd-"))
        try:
            shutil.copytree(self._home, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_STORE, "logs"))
            await self._empty()
            yield _View(home, self._broker.url)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    async def _empty(self) -> None:
        """Remove what an earlier test has left: messages and consumers."""
        async with self._broker.provisioner() as jetstream:
            found = await _streams(jetstream)
            assert {stream["config"]["name"]: stream["config"] for stream in found} == {
                name: config for name, (config, _) in self._provisioned.items()
            }, "a test has changed the streams: mark it `own_broker`"
            await asyncio.gather(*(self._empty_stream(jetstream, stream) for stream in found))

    async def _empty_stream(self, jetstream: JetStreamContext, stream: dict[str, Any]) -> None:
        name = stream["config"]["name"]
        _, consumers = self._provisioned[name]
        if stream["state"]["consumer_count"] != len(consumers):
            present = await _consumers(jetstream, name)
            assert present >= consumers, "a test has deleted a consumer: mark it `own_broker`"
            for consumer in present - consumers:
                await jetstream.delete_consumer(name, consumer)
        if stream["state"]["messages"]:
            await jetstream.purge_stream(name)


async def _streams(jetstream: JetStreamContext) -> list[dict[str, Any]]:
    return list((await jetstream._api_request("$JS.API.STREAM.LIST"))["streams"])


async def _consumers(jetstream: JetStreamContext, stream: str) -> frozenset[str]:
    return frozenset(consumer.name for consumer in await jetstream.consumers_info(stream))


@pytest.fixture(scope="session")
def shared_broker(provisioned: Path) -> Iterator[SharedBroker]:
    """The broker of all tests of this process that need none of their own."""
    shared = SharedBroker(provisioned)
    try:
        yield asyncio.run(shared.start())
    finally:
        asyncio.run(shared.end())


@pytest.fixture
async def herd(request: pytest.FixtureRequest, provisioned: Path, shared_broker: SharedBroker) -> AsyncIterator[Broker]:
    """As `tests/conftest.py` has it; the server is shared, unless the test is marked `own_broker`."""
    marked = request.node.get_closest_marker("own_broker") is not None
    async with own_broker(provisioned) if marked else shared_broker.view() as broker:
        yield broker
