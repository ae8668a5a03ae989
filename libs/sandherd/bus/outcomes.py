"""A delivered message, and the three ways in which handling it can end."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final, NamedTuple

from nats.aio.msg import Msg

from sandherd.contracts.errors import Code, ContractError, Problem

MOST_DELIVERIES: Final = 5
"""A handler that fails in an unforeseen way is tried so often; then the message goes to DEAD."""
_RETRY_WAITS: Final = (0.2, 1.0, 5.0, 15.0)
NANO: Final = 1_000_000_000


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
    """Retry: the message is redelivered after `after` seconds, without a limit of attempts."""

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
"""Called for every outcome, with the consumer's name and the number of them."""

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
        at=datetime.fromtimestamp(int(nanoseconds) / NANO, UTC),
        headers=msg.headers or {},
    )


def negative(after: float) -> bytes:
    """A negative acknowledgement: the message is redelivered after `after` seconds."""
    return b"-NAK " + json.dumps({"delay": int(after * NANO)}).encode()
