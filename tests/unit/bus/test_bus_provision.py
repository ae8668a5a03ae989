"""Creating streams on a broker that can't create their files, or not yet."""

from typing import Any

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from sandherd.backoff import Backoff
from sandherd.bus import provision
from sandherd.bus.provision import ProvisionError, create_missing
from sandherd.contracts.streams import CONSUMERS
from sandherd.stack.cluster import retry_during_election

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
    monkeypatch.setattr(provision, "STORE_BACKOFF", Backoff(base=0.0, cap=0.0))


async def test_temporary_store_failure_is_retried() -> None:
    """A cluster that is just forming refuses a store at first: the stream is created nevertheless."""
    js: Js = Failing(failures=provision.STORE_RETRIES)
    done = await create_missing(js)
    assert js.created[0] == "EVENTS"
    assert len(done) == len(js.created) + len(CONSUMERS)


async def test_repeated_store_failure_is_an_error_that_names_the_stream() -> None:
    """Provisioning on a full disk ends with the broker's error and what to do."""
    js: Js = Failing(failures=1000)
    with pytest.raises(ProvisionError, match=r"stream \w+: .*error creating store for stream.*free space"):
        await create_missing(js)
    assert js.created == []


async def test_unknown_account_at_new_leader_is_retried() -> None:
    """Each server of a newly started cluster learns of the accounts by itself."""
    js: Js = Failing(failures=2, error=ACCOUNT)
    await retry_during_election(lambda: create_missing(js), 3)
    assert js.created[0] == "EVENTS"
