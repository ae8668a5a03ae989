"""A delivered message, and the three outcomes of handling it."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from sandherd.contracts.errors import Code, ContractError, Problem

MAX_DELIVERIES: Final = 5
"""Maximum number of deliveries if a handler fails with an unexpected error. Then the message is stored in DEAD."""
_RETRY_DELAYS_SECONDS: Final = (0.2, 1.0, 5.0, 15.0)
NANOSECONDS_PER_SECOND: Final = 1_000_000_000


class Delivery(NamedTuple):
    """A delivered message, with its sequence number in `stream`, its number of deliveries, and its time of storage."""

    subject: str
    data: bytes
    stream: str
    stream_sequence: int
    deliveries: int
    at: datetime
    headers: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Done:
    """The message is handled, and is acknowledged."""


@dataclass(frozen=True, slots=True)
class Retry:
    """The message is handled again after `after` seconds. A handler may return it any number of times."""

    after: float
    reason: str


@dataclass(frozen=True, slots=True)
class Dead:
    """The message can't be handled. It is stored in DEAD with the reason, and is not redelivered."""

    problem: Problem


Outcome = Done | Retry | Dead
Handler = Callable[[Delivery], Awaitable[Outcome]]
BatchHandler = Callable[[list[Delivery]], Awaitable[Sequence[Outcome]]]
OnOutcome = Callable[[str, Outcome, int], None]
"""A function that is called with the consumer's name, an outcome, and the number of messages with this outcome."""

DONE: Final = Done()


def outcome_of(error: Exception, deliveries: int) -> Outcome:
    """The outcome for a handler's exception: `Dead` for a `ContractError`; any other error is retried a few times."""
    if isinstance(error, ContractError):
        return Dead(error.problem)
    if deliveries >= MAX_DELIVERIES:
        message = f"failed at delivery {deliveries}: {type(error).__name__}: {error}"
        return Dead(Problem(code=Code.INTERNAL, message=message))
    return Retry(
        _RETRY_DELAYS_SECONDS[min(deliveries, len(_RETRY_DELAYS_SECONDS)) - 1], f"{type(error).__name__}: {error}"
    )


def read_delivery(msg: Msg) -> Delivery:
    """Read a message and the metadata in its reply subject, `$JS.ACK…`, which has two forms (NATS ADR-15)."""
    tokens = msg.reply.split(".")
    stream, _, deliveries, sequence, _, nanoseconds = tokens[2:8] if len(tokens) == 9 else tokens[4:10]
    at = datetime.fromtimestamp(int(nanoseconds) / NANOSECONDS_PER_SECOND, UTC)
    return Delivery(msg.subject, msg.data, stream, int(sequence), int(deliveries), at, msg.headers or {})


def negative_acknowledgement(after: float) -> bytes:
    """A negative acknowledgement: the message is redelivered after `after` seconds."""
    return b"-NAK " + json.dumps({"delay": int(after * NANOSECONDS_PER_SECOND)}).encode()
