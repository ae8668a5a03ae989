"""Creating streams on a broker that can't create their files, or not yet."""

from typing import Any

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import NotFoundError, ServerError

from sandherd.bus import provision
from sandherd.bus.provision import ProvisionError, create_missing
from sandherd.contracts.streams import CONSUMERS

Js = Any


class FailingStore:
    """Answers as nats-server 2.15 does whose store fails for the first `failures` requests."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.created: list[str] = []

    async def stream_info(self, name: str) -> None:
        raise NotFoundError(code=404, description=f"stream not found: {name}")

    async def consumer_info(self, _stream: str, _name: str) -> None:
        raise NotFoundError(code=404, description="consumer not found")

    async def add_stream(self, config: StreamConfig) -> None:
        if self.failures:
            self.failures -= 1
            raise ServerError(code=500, err_code=10049, description="error creating store for stream")
        self.created.append(str(config.name))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "STORE_PAUSES", (0.0,) * len(provision.STORE_PAUSES))


async def test_a_store_that_fails_for_a_moment_is_created_again() -> None:
    """A cluster that is just forming refuses a store at first: the stream is created all the same."""
    js: Js = FailingStore(failures=len(provision.STORE_PAUSES))
    done = await create_missing(js)
    assert js.created[0] == "EVENTS"
    assert len(done) == len(js.created) + len(CONSUMERS)


async def test_a_store_that_goes_on_failing_is_an_error_that_names_the_stream() -> None:
    """On a full disk it ends with what the broker answered and what to do."""
    js: Js = FailingStore(failures=1000)
    with pytest.raises(ProvisionError, match=r"stream \w+: .*error creating store for stream.*make room"):
        await create_missing(js)
    assert js.created == []
