"""Handling what a durable consumer delivers: each message ends in one of three ways, and none is lost."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

import nats.errors
from nats.aio.msg import Msg

from sandherd.bus.connection import Bus
from sandherd.bus.health import Health
from sandherd.bus.pulling import DeafError, Puller, bound
from sandherd.contracts.errors import Code, ContractError, Problem
from sandherd.contracts.streams import BY_CONSUMER, Consumer
from sandherd.contracts.subjects import dead_subject
from sandherd.telemetry import logs

MOST_DELIVERIES: Final = 5
"""A handler that fails in an unforeseen way is tried so often; then the message goes to DEAD."""
_RETRY_WAITS: Final = (0.2, 1.0, 5.0, 15.0)
_ROOM_FOR_REASON: Final = 16 * 1024
"""For the headers of a dead letter: a subject, and a reason of a few hundred characters."""
_NANO: Final = 1_000_000_000
_log: Final = logs.get("consuming")


class Delivery(NamedTuple):
    """A message as it was delivered: where it stands in its stream, and how often it came."""

    subject: str
    data: bytes
    stream: str
    stream_sequence: int
    deliveries: int
    at: datetime
    headers: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Done:
    """Handled; it is acknowledged."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Not now: it comes again after so many seconds, as often as it takes."""

    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Dead:
    """Never: it goes to DEAD with its reason, and comes no more."""

    problem: Problem


Outcome = Done | Retry | Dead
Handler = Callable[[Delivery], Awaitable[Outcome]]
BatchHandler = Callable[[list[Delivery]], Awaitable[Sequence[Outcome]]]
Counted = Callable[[str, Outcome, int], None]
"""Told of every outcome, with the consumer's name and how many of them there were."""

DONE: Final = Done()


def outcome_of(error: Exception, deliveries: int) -> Outcome:
    """What a handler's exception means: a broken contract is for ever, anything else is tried a few times."""
    if isinstance(error, ContractError):
        return Dead(error.problem)
    if deliveries >= MOST_DELIVERIES:
        return Dead(Problem(code=Code.INTERNAL, message=f"failed {deliveries} times: {type(error).__name__}: {error}"))
    return Retry(_RETRY_WAITS[min(deliveries, len(_RETRY_WAITS)) - 1], f"{type(error).__name__}: {error}")


def read_delivery(msg: Msg) -> Delivery:
    """The message, with what its reply subject says of it (ADR-15: both forms of `$JS.ACK`)."""
    tokens = msg.reply.split(".")
    stream, _, deliveries, sequence, _, nanoseconds = tokens[2:8] if len(tokens) == 9 else tokens[4:10]
    return Delivery(
        subject=msg.subject,
        data=msg.data,
        stream=stream,
        stream_sequence=int(sequence),
        deliveries=int(deliveries),
        at=datetime.fromtimestamp(int(nanoseconds) / _NANO, UTC),
        headers=msg.headers or {},
    )


async def consume(
    bus: Bus, consumer: str, handle: Handler, *, health: Health, concurrency: int = 1, counted: Counted | None = None
) -> None:
    """Hand each message to `handle`, up to `concurrency` at a time; with 1 they come in order. Runs until cancelled."""
    settling = Settling(bus, BY_CONSUMER[consumer], counted)

    async def handle_all(messages: list[Msg]) -> None:
        for start in range(0, len(messages), concurrency):
            group = messages[start : start + concurrency]
            await asyncio.gather(*(settling.handle_one(msg, handle) for msg in group))

    await _pull(bus, BY_CONSUMER[consumer], handle_all, health, batch=max(16, concurrency), window=64)


async def consume_batches(
    bus: Bus,
    consumer: str,
    handle: BatchHandler,
    *,
    health: Health,
    batch: int = 500,
    in_flight: int = 1,
    counted: Counted | None = None,
) -> None:
    """Hand what is there, up to `batch` messages, to `handle`, which answers with as many outcomes. Until cancelled.

    Up to `in_flight` batches are handled at a time, in any order: one is read while another is being stored.
    """
    settling = Settling(bus, BY_CONSUMER[consumer], counted)
    more = asyncio.Semaphore(in_flight - 1)

    async def handle_one(messages: list[Msg]) -> None:
        try:
            await settling.handle_batch(messages, handle)
        finally:
            more.release()

    async with asyncio.TaskGroup() as group:

        async def handle_all(messages: list[Msg]) -> None:
            group.create_task(handle_one(messages))
            # Waiting here, and not before, lets the next batch fill up meanwhile.
            await more.acquire()

        await _pull(bus, BY_CONSUMER[consumer], handle_all, health, batch=batch, window=batch * 4)


async def _pull(
    bus: Bus,
    consumer: Consumer,
    handle_all: Callable[[list[Msg]], Awaitable[None]],
    health: Health,
    *,
    batch: int,
    window: int,
) -> None:
    puller = Puller(bus, consumer.stream, consumer.name, window)
    health.add(f"consumer {consumer.name}", puller.problem)
    try:
        while True:
            await bound(puller)
            try:
                while True:
                    await handle_all(await puller.next_batch(batch))
            except DeafError as error:
                _log.error("lost the consumer", error=str(error))
    finally:
        await puller.unbind()


class Settling:
    """Calls handlers and does what their outcomes say: acknowledge, ask again later, or keep in DEAD."""

    def __init__(self, bus: Bus, consumer: Consumer, counted: Counted | None) -> None:
        self._bus = bus
        self._consumer = consumer
        self._counted = counted or (lambda _consumer, _outcome, _amount: None)

    async def handle_one(self, msg: Msg, handle: Handler) -> None:
        """One message, to its end."""
        delivery = read_delivery(msg)
        try:
            outcome = await handle(delivery)
        except Exception as error:  # noqa: BLE001  # whatever a handler raises becomes an outcome: none is swallowed
            outcome = outcome_of(error, delivery.deliveries)
            self._log_failure(delivery, outcome, error)
        await self.settle(msg, delivery, outcome)

    async def handle_batch(self, messages: list[Msg], handle: BatchHandler) -> None:
        """A batch, to its end. If the handler fails as a whole, each message is tried alone."""
        deliveries = [read_delivery(msg) for msg in messages]
        outcomes: Sequence[Outcome]
        try:
            outcomes = await handle(deliveries)
        except Exception as error:  # noqa: BLE001  # becomes the outcome of each of its messages
            if len(messages) > 1:
                # One message may have broken the batch: alone, each is judged for itself.
                for msg in messages:
                    await self.handle_batch([msg], handle)
                return
            outcomes = [outcome_of(error, deliveries[0].deliveries)]
            self._log_failure(deliveries[0], outcomes[0], error)
        done = 0
        for msg, delivery, outcome in zip(messages, deliveries, outcomes, strict=True):
            if outcome is DONE:
                await self._answer(msg, b"+ACK")
                done += 1
            else:
                await self.settle(msg, delivery, outcome)
        self._counted(self._consumer.name, DONE, done)  # once: a label's lookup for each costs as much as an ack

    async def settle(self, msg: Msg, delivery: Delivery, outcome: Outcome) -> None:
        """Tell the broker. A message goes to DEAD first, and is given up only when it is safe there."""
        self._counted(self._consumer.name, outcome, 1)
        match outcome:
            case Done():
                await self._answer(msg, b"+ACK")
            case Retry(after=after):
                await self._answer(msg, b"-NAK " + json.dumps({"delay": int(after * _NANO)}).encode())
            case Dead(problem=problem):
                await self._bury(delivery, problem)
                await self._answer(msg, b"+TERM " + problem.code.encode())

    async def _answer(self, msg: Msg, verdict: bytes) -> None:
        try:
            await self._bus.client.publish(msg.reply, verdict)
        except nats.errors.Error as error:
            # Nothing is lost by it: what was not answered is delivered again.
            _log.warning("could not answer a delivery", subject=msg.subject, error=repr(error))

    async def _bury(self, delivery: Delivery, problem: Problem) -> None:
        service = self._consumer.service.value
        _log.warning("dead letter", subject=delivery.subject, code=problem.code, problem=problem.message)
        # A message as large as the broker takes has no room for the reason: its end is cut off, not the connection.
        room = self._bus.client.max_payload - _ROOM_FOR_REASON
        await self._bus.publish_stored(
            dead_subject(service, problem.code),
            delivery.data[:room],
            msg_id=f"dead-{self._consumer.name}-{delivery.stream}-{delivery.stream_sequence}",
            headers=dead_headers(service, delivery, problem),
        )

    def _log_failure(self, delivery: Delivery, outcome: Outcome, error: Exception) -> None:
        if not isinstance(error, ContractError):
            _log.error("handler failed", subject=delivery.subject, outcome=type(outcome).__name__, exc_info=error)


def dead_headers(service: str, delivery: Delivery, problem: Problem) -> dict[str, str]:
    """What a dead letter says of itself: from where, why, and what it was."""
    return {
        "Sandherd-Service": service,
        "Sandherd-Reason": json.dumps(problem.model_dump(mode="json", exclude_none=True)),
        "Sandherd-Subject": delivery.subject,
        "Sandherd-Stream": delivery.stream,
        "Sandherd-Stream-Sequence": str(delivery.stream_sequence),
        "Sandherd-Size": str(len(delivery.data)),
    }


def revived(msg_subject: str, data: bytes, headers: Mapping[str, str], at: datetime) -> Delivery:
    """A dead letter as the delivery it once was. Raises `ContractError` if it is no dead letter."""
    try:
        return Delivery(
            subject=headers["Sandherd-Subject"],
            data=data,
            stream=headers["Sandherd-Stream"],
            stream_sequence=int(headers["Sandherd-Stream-Sequence"]),
            deliveries=1,
            at=at,
        )
    except (KeyError, ValueError):
        raise ContractError(Code.INVALID_FIELD, f"{msg_subject} holds no dead letter of ours") from None
