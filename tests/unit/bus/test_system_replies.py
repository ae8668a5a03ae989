"""Replies of the broker's system account that are not what was requested: errors that are retried, and no crash."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandherd.bus.connection import Bus
from sandherd.bus.connection_list import BrokerConnections
from sandherd.bus.errors import BusError
from sandherd.bus.identity.revocation import RevocationFailedError, push_token

REPLIES = (
    b"",
    b"not JSON",
    b"[]",
    b'"text"',
    b'{"error": {"code": 500}}',
    b'{"data": null}',
    b'{"data": {"code": 503}}',
)


class SystemLine:
    """A connection to the system account on which each request has this reply."""

    def __init__(self, reply: bytes) -> None:
        self._reply = reply

    async def request(self, _subject: str, _body: bytes, timeout: float) -> bytes:
        assert timeout
        return self._reply


@pytest.mark.parametrize("reply", REPLIES)
async def test_unusable_reply_to_a_pushed_token_is_a_failed_revocation(reply: bytes) -> None:
    """A token is not taken as accepted, and the error is one that callers retry."""
    with pytest.raises(RevocationFailedError):
        await push_token(cast("Bus", SystemLine(reply)), "token")


async def test_accepted_token_is_accepted() -> None:
    """The broker's code for success is no error."""
    await push_token(cast("Bus", SystemLine(b'{"data": {"code": 200}}')), "token")


@pytest.mark.parametrize("reply", REPLIES)
async def test_unusable_list_of_connections_is_a_bus_error(reply: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one that the flood guard retries."""

    async def replies(_self: Any, _question: bytes) -> list[bytes]:
        return [reply]

    monkeypatch.setattr(BrokerConnections, "_request_all", replies)
    with pytest.raises(BusError):
        await BrokerConnections(cast("Bus", SimpleNamespace(clustered=False))).read()
