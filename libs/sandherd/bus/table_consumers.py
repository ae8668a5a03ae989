"""Creates the durable consumers of the stream table, when the spawner starts.

The provisioner does not create them. The request that creates a consumer can also change an existing one, and its body
can name a subject to deliver to, so the provisioner's credential would allow reading streams and deleting consumers.
"""

import asyncio
import json
from typing import Final

import nats.js.errors

from sandherd.bus.broker_errors import BROKER_ERRORS
from sandherd.bus.connection import Bus
from sandherd.bus.errors import BusError
from sandherd.bus.stream_configs import consumer_config
from sandherd.contracts.streams import CONSUMERS, Consumer
from sandherd.telemetry import logs

_CONSUMER_EXISTS: Final = 10148
"""The broker's code for a consumer that exists with another configuration."""
_RETRY_SECONDS: Final = 0.5
_ATTEMPTS_PER_LOG_LINE: Final = 20
_BROKER_ERRORS: Final = (*BROKER_ERRORS, BusError)
_log: Final = logs.get("table_consumers")


async def create_consumers(bus: Bus) -> None:
    """Create every missing durable consumer, and retry until all exist. Existing ones are not changed."""
    attempt = 0
    while problems := list(filter(None, await asyncio.gather(*(_create(bus, row) for row in CONSUMERS)))):
        if attempt % _ATTEMPTS_PER_LOG_LINE == 0:
            _log.error("consumers not created, retrying", error="; ".join(problems))
        attempt += 1
        await asyncio.sleep(_RETRY_SECONDS)


async def _create(bus: Bus, consumer: Consumer) -> str | None:
    """Create the consumer if it is missing. Returns None if it exists now, else the reason."""
    try:
        await bus.js.consumer_info(consumer.stream, consumer.name)
    except nats.js.errors.NotFoundError:
        return await _request_creation(bus, consumer)
    except _BROKER_ERRORS as error:
        return _problem(consumer, type(error).__name__)
    return None


async def _request_creation(bus: Bus, consumer: Consumer) -> str | None:
    body = {"stream_name": consumer.stream, "config": consumer_config(consumer).as_dict(), "action": "create"}
    subject = f"{bus.api}.CONSUMER.CREATE.{consumer.stream}.{consumer.name}"
    try:
        refusal = json.loads(await bus.request(subject, json.dumps(body).encode())).get("error")
    except _BROKER_ERRORS as error:
        return _problem(consumer, type(error).__name__)
    if refusal and refusal.get("err_code") != _CONSUMER_EXISTS:
        return _problem(consumer, str(refusal.get("description")))
    return None


def _problem(consumer: Consumer, reason: str) -> str:
    return f"{consumer.name} on {consumer.stream}: {reason}"
