"""One broker for many tests of a process, emptied between them: starting one takes most of the time of a short test.

Each test has its own home, with the same keys. A `conftest.py` that imports this `herd` uses the shared broker. Changed
limits of a stream are reset. A test is marked `own_broker` if it ends the server, searches its files, creates or
deletes a stream or its provisioned consumer, revokes a user's credential, counts a stream's sequence numbers from 1, or
publishes with a fixed message id: an emptied stream still knows the ids of the last minutes, and the message would be a
duplicate.
"""

import asyncio
import json
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
from tests.live_files import ELSEWHERE
from tests.run_reports import SERVERS

_STORE: Final = "nats"
_OWN: Final = "the broker is that of other tests, too: mark this test `own_broker`"


@asynccontextmanager
async def own_broker(provisioned: Path) -> AsyncIterator[Broker]:
    """A broker that no other test uses, on a copy of one provisioned broker."""
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
    """The broker of one test: its own home, and the shared server."""

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
    """A server on a copy of a provisioned broker, and the streams, buckets and consumers that it has at its start."""

    def __init__(self, provisioned: Path) -> None:
        self._home = Path(tempfile.mkdtemp(prefix="shared-"))
        shutil.copytree(provisioned, self._home, dirs_exist_ok=True)
        self._broker = Broker(self._home)
        self._provisioned: dict[str, tuple[dict[str, Any], frozenset[str]]] = {}
        self._last = "no test"

    async def start(self) -> Self:
        """Start the server."""
        self._broker.initialise()
        await self._broker.nats.start()
        SERVERS.add(self._broker.child.pid)
        async with self._broker.provisioner() as jetstream:
            for stream in await _streams(jetstream):
                name = stream["config"]["name"]
                self._provisioned[name] = stream["config"], await _consumers(jetstream, name)
        return self

    async def end(self) -> None:
        """End the server, and remove its files."""
        SERVERS.discard(self._broker.child.pid)
        await self._broker.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    @asynccontextmanager
    async def view(self, test: str) -> AsyncIterator[Broker]:
        """A view of the broker for one test, with nothing in it."""
        home = Path(tempfile.mkdtemp(prefix="herd-"))
        try:
            shutil.copytree(self._home, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns(_STORE, "logs"))
            (home / ELSEWHERE).touch()
            await self._empty()
            self._last = test
            yield _View(home, self._broker.url)
        finally:
            shutil.rmtree(home, ignore_errors=True)

    async def _empty(self) -> None:
        """Remove the messages and consumers that an earlier test has left."""
        async with self._broker.provisioner() as jetstream:
            found = await _streams(jetstream)
            assert {stream["config"]["name"] for stream in found} == self._provisioned.keys(), (
                f"{self._last} has created or deleted a stream: mark it `own_broker`"
            )
            await asyncio.gather(*(self._empty_stream(jetstream, stream) for stream in found))

    async def _empty_stream(self, jetstream: JetStreamContext, stream: dict[str, Any]) -> None:
        name = stream["config"]["name"]
        config, consumers = self._provisioned[name]
        if stream["config"] != config:  # a limit that a test has set, in order to reach it
            await jetstream._api_request(f"$JS.API.STREAM.UPDATE.{name}", json.dumps(config).encode())
        if stream["state"]["consumer_count"] != len(consumers):
            present = await _consumers(jetstream, name)
            assert present >= consumers, f"{self._last} has deleted a consumer: mark it `own_broker`"
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
    """The broker that all tests of this process share, except those marked `own_broker`."""
    shared = SharedBroker(provisioned)
    try:
        yield asyncio.run(shared.start())
    finally:
        asyncio.run(shared.end())


@pytest.fixture
async def herd(request: pytest.FixtureRequest, provisioned: Path, shared_broker: SharedBroker) -> AsyncIterator[Broker]:
    """The fixture `herd` of `tests/conftest.py`; the server is shared, unless the test is marked `own_broker`."""
    marked = request.node.get_closest_marker("own_broker") is not None
    async with own_broker(provisioned) if marked else shared_broker.view(request.node.nodeid) as broker:
        yield broker
