"""Reading EVENTS from a place of one's own, in order and without a hole, and knowing until when all has been read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from sandherd.bus.connection import Bus
from sandherd.bus.consuming import Delivery, read_delivery
from sandherd.bus.pulling import DeafError, Puller
from sandherd.telemetry import logs

STREAM: Final = "EVENTS"
_WINDOW: Final = 4000
_BATCH: Final = 1000
_IDLE: Final = 30.0
"""The broker forgets a follower that has not asked for so many seconds."""
_log: Final = logs.get("following")


@dataclass(frozen=True, slots=True)
class Reached:
    """How far the stream was read when the broker was asked: its time then, and how many events were still to come."""

    asked_at: datetime
    left: int


class Follower:
    """Pulls every event after a position, through a short-lived consumer that acknowledges nothing."""

    def __init__(self, bus: Bus, name: str) -> None:
        self._bus = bus
        self._name = name
        self._puller: Puller | None = None
        self._next = 0

    async def start(self, position: int) -> None:
        """Read what stands behind `position`. Raises `DeafError` if the stream can't be read."""
        await self.stop()
        try:
            first = (await self._bus.js.stream_info(STREAM)).state.first_seq
            await self._create(max(position + 1, first))
        except (TimeoutError, nats.js.errors.Error, nats.errors.Error, OSError) as error:
            raise DeafError(f"{STREAM} can't be followed: {error!r}") from error
        if first > position + 1 and position:
            _log.warning("the stream no longer has what follows the snapshot", position=position, first=first)
        self._next = 1
        self._puller = Puller(self._bus, STREAM, self._name, _WINDOW)
        await self._puller.bind()

    async def _create(self, first: int) -> None:
        config = ConsumerConfig(
            name=self._name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            ack_policy=AckPolicy.NONE,
            inactive_threshold=_IDLE,
            mem_storage=True,
            num_replicas=1,
        )
        await self._bus.js.add_consumer(STREAM, config)

    async def stop(self) -> None:
        """Read no more, and leave nothing behind in the broker."""
        if self._puller is not None:
            await self._puller.unbind()
        self._puller = None
        try:
            await self._bus.js.delete_consumer(STREAM, self._name)
        except nats.js.errors.NotFoundError:
            return
        except (TimeoutError, nats.js.errors.Error, nats.errors.Error, OSError) as error:
            _log.info("the follower is left to the broker", error=repr(error))

    async def next_batch(self) -> Sequence[Delivery]:
        """At least one event. Raises `DeafError` when one was lost on its way, or the consumer is gone."""
        if self._puller is None:
            raise DeafError("not following")
        batch = await self._puller.next_batch(_BATCH)
        self._check_whole(batch)
        return [read_delivery(msg) for msg in batch]

    def _check_whole(self, batch: Sequence[Msg]) -> None:
        """Without acknowledgements nothing comes twice, so what a broken connection swallowed shows in the numbers."""
        for msg in batch:
            number = msg.metadata.sequence.consumer
            if number != self._next:
                raise DeafError(f"number {self._next} was lost on its way; {number} came")
            self._next += 1

    async def reached(self, position: int) -> Reached:
        """How far `position` is. Raises `DeafError` if it does not answer."""
        try:
            reply = await self._bus.client.request(f"$JS.API.CONSUMER.INFO.{STREAM}.{self._name}", timeout=2)
            info: dict[str, Any] = json.loads(reply.data)
            pending, delivered = info["num_pending"], info["delivered"]["stream_seq"]
            at = datetime.fromisoformat(info["ts"]).astimezone(UTC)
        except (TimeoutError, nats.errors.Error, OSError, KeyError, ValueError) as error:
            raise DeafError(f"{self._name} does not answer: {error!r}") from error
        return Reached(at, pending + max(0, delivered - position))

    def problem(self) -> str | None:
        """None while events can be read; else why not."""
        return self._puller.problem() if self._puller is not None else "not following yet"
