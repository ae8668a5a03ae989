"""Creating streams on a broker that can't create their files, or not yet."""

from typing import Any

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from sandherd.bus import provision
from sandherd.bus.provision import ProvisionError, create_missing
from sandherd.contracts.streams import CONSUMERS
from sandherd.stack.cluster import patiently

Js = Any


STORE = ServerError(code=500, err_code=10049, description="error creating store for stream")
ACCOUNT = ServiceUnavailableError(code=503, err_code=10039, description="JetStream not enabled for account")


class Failing:
    """Answers the first `failures` requests for a stream as nats-server 2.15 does, with an error."""

    def __init__(self, failures: int, error: APIError = STORE) -> None:
        self.failures = failures
        self.error = error
        self.created: list[str] = []

    async def stream_info(self, name: str) -> None:
        raise NotFoundError(code=404, description=f"stream not found: {name}")

    async def consumer_info(self, _stream: str, _name: str) -> None:
        raise NotFoundError(code=404, description="consumer not found")

    async def add_stream(self, config: StreamConfig) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error
        self.created.append(str(config.name))


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provision, "STORE_PAUSES", (0.0,) * len(provision.STORE_PAUSES))


async def test_a_store_that_fails_for_a_moment_is_created_again() -> None:
    """A cluster that is just forming refuses a store at first: the stream is created all the same."""
    js: Js = Failing(failures=len(provision.STORE_PAUSES))
    done = await create_missing(js)
    assert js.created[0] == "EVENTS"
    assert len(done) == len(js.created) + len(CONSUMERS)


async def test_a_store_that_goes_on_failing_is_an_error_that_names_the_stream() -> None:
    """On a full disk it ends with what the broker answered and what to do."""
    js: Js = Failing(failures=1000)
    with pytest.raises(ProvisionError, match=r"stream \w+: .*error creating store for stream.*make room"):
        await create_missing(js)
    assert js.created == []


async def test_a_leader_that_does_not_know_the_account_yet_is_asked_again() -> None:
    """Each server of a cluster that has just been started learns of the accounts for itself."""
    js: Js = Failing(failures=2, error=ACCOUNT)
    await patiently(lambda: create_missing(js), 3)
    assert js.created[0] == "EVENTS"
