"""Losses of a webhook: none by a killed process, and counted ones by a stream that drops its oldest events."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from message_relay.webhooks import partition
from message_relay.webhooks.intake import EventIntake
from message_relay.webhooks.queue import DeliveryQueue
from message_relay.webhooks.webhook_record import WebhookRecord
from sandherd.cli.exit_status import run_command
from sandherd.client import Herd
from sandherd.contracts.subjects import Principal
from sandherd.service.service import Service
from sandherd.stack.broker import Broker
from tests.integration.message_relay.webhook_endpoint import Endpoint
from tests.integration.message_relay.webhook_herd import (
    HOST,
    ONE,
    TWO,
    context_of,
    create,
    is_idle,
    relay_of,
    workers,
)
from tests.polling import eventually

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@asynccontextmanager
async def relay_process(herd: Broker) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = herd.settings(Principal.MESSAGE_RELAY)
    environment = os.environ | {
        "NATS_URL": settings.nats_url,
        "SANDHERD_CREDENTIALS": str(settings.credentials),
        "SANDHERD_WEBHOOK_HOSTS": HOST,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "message_relay.main", env=environment, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.faults
async def test_killed_process_loses_no_event_and_repeats_with_the_same_id(
    herd: Broker, user: Herd, endpoint: Endpoint
) -> None:
    """After a SIGKILL during requests every event is accepted, in order, each with one id."""
    async with workers(herd) as publish:
        async with relay_process(herd) as process:
            await create(user, "hook", f"{endpoint.url}/hook", types=["agent"])
            await create(user, "silent", f"{endpoint.url}/silent", types=["agent"])
            await publish(*range(1, 11))
            await eventually(lambda: len(endpoint.accepted["hook"]) >= 5, "some are accepted")
            await eventually(lambda: len(endpoint.ids["silent"]) == 2, "the first of each sandbox is being sent")
            process.send_signal(signal.SIGKILL)
            await process.wait()
        interrupted = endpoint.ids["silent"][:]
        await publish(11)
        endpoint.held.set()
        async with relay_process(herd):
            for name in ("hook", "silent"):
                await eventually(partial(endpoint.has, name, 22), "all are accepted")
                assert (endpoint.of(name, ONE), endpoint.of(name, TWO)) == ([*range(1, 12)], [*range(1, 12)])
                assert len(set(endpoint.ids[name])) == 22
    assert all(endpoint.ids["silent"].count(one) >= 2 for one in interrupted)


def value_of(relay: Service, name: str, **labels: str) -> float:
    return relay.registry.get_sample_value(name, labels) or 0.0


def assert_counted(relay: Service) -> None:
    """Check that one event was accepted, another one waits, and none is lost."""
    part = str(partition.partition_of("default.hook"))
    assert value_of(relay, "sandherd_webhook_oldest_seconds", partition=part) > 0
    assert value_of(relay, "sandherd_webhook_deliveries_total", outcome="accepted") == 1
    assert value_of(relay, "sandherd_webhook_deliveries_total", outcome="failed") >= 1
    assert value_of(relay, "sandherd_webhook_delay_seconds_count") == 1
    assert value_of(relay, "sandherd_webhook_events_dropped_total") == 0


async def test_events_that_the_stream_dropped_are_counted_and_shown(
    herd: Broker, user: Herd, endpoint: Endpoint, capfd: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events purged before or while they waited are counted and shown; a replay begins after them."""
    monkeypatch.setattr(partition, "SCANNED_EVERY", 0.1)
    async with workers(herd) as publish:
        async with relay_of(herd).running() as relay:
            await create(user, "hook", f"{endpoint.url}/hook", types=["agent"])
            await create(user, "quiet", f"{endpoint.url}/quiet", entities=["sbx-none"])
            endpoint.refused["hook"] = {2: 500}
            await publish(1, 2, sandboxes=(ONE,))
            await eventually(lambda: endpoint.of("hook", ONE) == [1], "the first is accepted")
            await eventually(partial(_is_retrying, user), "the second waits")
            assert_counted(relay)
        await publish(3, 4, 5, sandboxes=(ONE,))
        async with herd.provisioner() as admin:
            last = (await admin.stream_info("EVENTS")).state.last_seq
            await admin.purge_stream("EVENTS", seq=last)
        endpoint.refused["hook"] = {}
        async with relay_of(herd).running() as relay:
            await eventually(lambda: endpoint.of("hook", ONE) == [1, 5], "it continues behind them")
            await eventually(partial(is_idle, user, "hook"), "that is stored")
            assert (await user.webhook("hook")).dropped == 3
            assert value_of(relay, "sandherd_webhook_events_dropped_total") >= 3
            assert (await _shown(herd, capfd))["dropped"] == 3
            await user.replay_webhook("hook", start="all")
            await eventually(partial(is_idle, user, "hook"), "what the stream has is sent again")
            assert (await user.webhook("hook")).dropped == 3


async def _is_retrying(user: Herd) -> bool:
    return bool((await user.webhook("hook")).retrying == 1)


async def _shown(herd: Broker, capfd: Any) -> Any:
    context = context_of(herd)
    place = ["--nats-url", context.nats_url, "--credentials", str(context.credentials), "--home", str(context.home)]
    capfd.readouterr()
    status = await asyncio.to_thread(run_command, [*place, "webhooks", "show", "hook", "-o", "json"])
    assert status == 0
    return json.loads(capfd.readouterr().out)


@pytest.mark.own_broker
async def test_project_without_events_misses_nothing(herd: Broker) -> None:
    """Dropped events of other projects do not count once the webhook has read to their position without its own."""
    record = WebhookRecord(
        project="quiet", name="hook", life="0" * 32, url="https://example.com", created_at=NOW, secret_at=NOW
    )
    async with herd.bus(Principal.MESSAGE_RELAY) as bus, workers(herd) as publish, herd.provisioner() as admin:
        intake = EventIntake(bus)
        record, queue, _ = await intake.begin(record)
        await publish(1, 2, 3)
        assert [await intake.read(record, queue) for _ in range(2)] == [(False, 0)] * 2
        position = queue.read_to
        await admin.purge_stream("EVENTS", seq=position + 1)
        assert (position, await intake.read(record, queue)) == (6, (False, 0))
        later = EventIntake(bus)
        assert await later.read(record, DeliveryQueue(record)) == (False, 6)
