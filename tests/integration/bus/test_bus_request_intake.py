"""A service refuses a worker's requests above its rate, and replies to others that send the same request."""

import json
from typing import Any

import pytest
from nats.aio.msg import Msg
from pydantic import BaseModel

from sandherd.bus.rate_limit import Rate
from sandherd.contracts.requests.worker import ListPeers, PeerList
from sandherd.contracts.subjects import BY_NAME, Principal
from sandherd.service.request_intake import RequestIntake
from sandherd.service.service import IncomingRequest, Service
from sandherd.stack.broker import Broker
from tests.patience import PATIENCE
from tests.polling import eventually

SENT = 2_000
ADMITTED = 20
"""Fewer requests than a queue has places for, and than would be admitted in an hour."""
SUBJECT = BY_NAME["request.spawner.peers"].fill(project="mad", sandbox="sbx-1")


async def test_flood_of_a_worker_is_refused_unread_and_others_are_answered(
    herd: Broker, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each request above the rate gets a typed refusal without being decoded; another project's gets its reply.

    All are counted, and one line is logged.
    """
    handled: list[str] = []

    async def answer(incoming: IncomingRequest[Any]) -> BaseModel:
        handled.append(incoming.project)
        return PeerList(peers=[])

    service = Service(Principal.SPAWNER, herd.settings(Principal.SPAWNER))
    service.answer(ListPeers, answer)
    service._intake = RequestIntake(service.meters, Rate(1e-6, ADMITTED))
    replies: list[dict[str, Any]] = []

    async def receive(reply: Msg) -> None:
        replies.append(json.loads(reply.data))

    async with (
        service.running(),
        herd.bus(Principal.WORKER, project="mad", sandbox="sbx-1") as mad,
        herd.bus(Principal.WORKER, project="p1", sandbox="sbx-1") as neighbour,
    ):
        await mad.client.subscribe("_INBOX_sbx-1.flood.*", cb=receive)
        for number in range(SENT):
            await mad.client.publish(SUBJECT, b"not JSON", reply=f"_INBOX_sbx-1.flood.{number}")
        await mad.flush(timeout=int(PATIENCE))
        assert await neighbour.ask(ListPeers(), "p1", sandbox="sbx-1", timeout=PATIENCE) == PeerList(peers=[])
        await eventually(lambda: len(replies) == SENT, "a reply to each request")
    refused = [reply["error"] for reply in replies if reply["error"]["code"] == "busy"]
    assert len(refused) == SENT - ADMITTED
    assert all(error["retry_after_seconds"] and error["remedy"] for error in refused)
    assert handled == ["p1"]
    labels = {"request": ListPeers.type, "outcome": "busy"}
    assert service.registry.get_sample_value("sandherd_requests_total", labels) == SENT - ADMITTED
    lines = [line for line in capfd.readouterr().err.splitlines() if "requests refused" in line]
    assert len(lines) == 1, lines
