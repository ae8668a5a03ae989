"""Streams, durable consumers and buckets: made from `contracts.streams`, in this one place, as often as one likes.

Written with plain nats-py, because FastStream's declaring rewrites a stream to defaults of its own.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NotFoundError

from sandherd.bus.errors import NOBODY_LEADS
from sandherd.bus.permissions import consumers_of, streams_of
from sandherd.bus.setup_permissions import Did
from sandherd.bus.stream_configs import consumer_config, declared_streams
from sandherd.contracts.streams import CONSUMERS, Consumer
from sandherd.contracts.subjects import Principal

_COMPARED: Final = (
    "subjects",
    "retention",
    "discard",
    "storage",
    "max_age",
    "max_bytes",
    "max_msgs_per_subject",
    "discard_new_per_subject",
    "duplicate_window",
    "allow_direct",
    "allow_rollup_hdrs",
    "allow_msg_ttl",
    "deny_delete",
    "subject_delete_marker_ttl",
    "republish",
    # Not declared by any stream: set, they copy messages, change them, or refuse or discard some.
    "mirror",
    "sources",
    "subject_transform",
    "sealed",
    "no_ack",
    "max_msgs",
    "max_msg_size",
    "deny_purge",
)
_REPLICAS: Final = "num_replicas"
_UNLIMITED: Final = -1
_NOT_YET: Final = NOBODY_LEADS | {10005, 10039}
"""And `JSClusterNoPeersErrF` and `JSNotEnabledForAccountErr`, of servers that have just been started: they do not know
of each other yet, or the one that leads does not know the account."""
STORE_PAUSES: Final = (0.2, 0.4, 0.8, 1.6)
"""Seconds before the same stream is created again, where the broker could not create its files."""
_STORE_FAILED: Final = "error creating store for stream"
"""The answer of nats-server (10049) while a cluster forms, and on a full disk."""
_OTHER_VERSION: Final = "it was made by another version: empty and delete it, or bring back that version"
_COMPARED_CONSUMER: Final = (
    "filter_subjects",
    "ack_policy",
    "ack_wait",
    "max_deliver",
    "max_ack_pending",
    "deliver_subject",
    "inactive_threshold",
)
_REMEDIES: Final = {
    "stream": "run `sandherd provision`, or `sandherd up`",
    "consumer": "restart the spawner, which creates it, or run `sandherd up`",
}
_CHANGE: Final = "run `sandherd provision --identity DIR`, or `sandherd up`"
_CHANGES_REFUSED: Final = (
    "{things}: not as declared, and this credential may only create; run `sandherd provision --identity DIR` with DIR "
    "the folder of the herd's keys"
)


class ProvisionError(Exception):
    """The broker would not take a declaration; the message names it and says what to do."""


@dataclass(frozen=True)
class Done:
    """What was done about something declared. `thing` is like `stream EVENTS`."""

    thing: str
    did: Did


@dataclass(frozen=True)
class Fault:
    """Something that is missing or other than declared. `thing` is like `stream EVENTS`."""

    thing: str
    problem: str

    def __str__(self) -> str:
        return f"{self.thing}: {self.problem}"


async def provision(js: JetStreamContext, replicas: int | None = None) -> list[Done]:
    """Create what is missing, and change what differs. Raises `ProvisionError` where the broker does not allow that.

    `replicas` is the number of servers that store each stream. Without it an existing stream keeps its number, and a
    new one has one. Raises nats-py's `Error`, also while a cluster is not ready for it.
    """
    compared = (*_COMPARED, _REPLICAS) if replicas else _COMPARED
    done = [
        Done(f"stream {name}", await _provision_stream(js, name, config, compared))
        for name, config in declared_streams(replicas or 1).items()
    ]
    return done + [Done(consumer.label, await _provision_consumer(js, consumer)) for consumer in CONSUMERS]


async def create_missing(js: JetStreamContext, replicas: int | None = None) -> list[Done]:
    """Create streams that are missing, with a credential that may do nothing else. Raises as `provision` does.

    A stream or consumer that exists and differs raises `ProvisionError` after the missing streams have been created:
    changing it takes another credential. A consumer that is missing is left to the spawner.
    """
    compared = (*_COMPARED, _REPLICAS) if replicas else _COMPARED
    done, different = [], []
    for name, config in declared_streams(replicas or 1).items():
        thing, found = f"stream {name}", await _stream_found(js, name)
        if found is None:
            await _create_stream(js, config)
        elif differing := differs(config, found, compared):
            different.append(f"{thing} ({', '.join(differing)})")
        done.append(Done(thing, Did.KEPT if found else Did.MADE))
    for consumer in CONSUMERS:
        existing = await _consumer_found(js, consumer)
        if existing and (differing := differs(consumer_config(consumer), existing, _COMPARED_CONSUMER)):
            different.append(f"{consumer.label} ({', '.join(differing)})")
        done.append(Done(consumer.label, Did.KEPT if existing else Did.PENDING))
    if different:
        raise ProvisionError(_CHANGES_REFUSED.format(things="; ".join(different)))
    return done


async def check(js: JetStreamContext, service: Principal) -> list[Fault]:
    """What a service needs and does not find, or finds other than declared. Empty if all is well.

    It asks only for what that service's own credential may see.
    """
    faults: list[Fault] = []
    declared = declared_streams()
    for name in streams_of(service):
        faults += await _look(f"stream {name}", js.stream_info(name), declared[name], _COMPARED)
    for consumer in consumers_of(service):
        faults += await _look(
            consumer.label,
            js.consumer_info(consumer.stream, consumer.name),
            consumer_config(consumer),
            _COMPARED_CONSUMER,
        )
    return faults


async def _provision_stream(js: JetStreamContext, name: str, wanted: StreamConfig, names: tuple[str, ...]) -> Did:
    found = await _stream_found(js, name)
    if found is None:
        await _create_stream(js, wanted)
        return Did.MADE
    if not differs(wanted, found, names):
        return Did.KEPT
    if _REPLICAS not in names:
        wanted = wanted.evolve(num_replicas=found.num_replicas)
    await _try(f"stream {name}", js.update_stream(wanted), _OTHER_VERSION)
    return Did.CHANGED


async def _provision_consumer(js: JetStreamContext, consumer: Consumer) -> Did:
    wanted = consumer_config(consumer)
    found = await _consumer_found(js, consumer)
    if found is not None and not differs(wanted, found, _COMPARED_CONSUMER):
        return Did.KEPT
    # Creating an existing consumer changes it, where that is allowed; its place in the stream stays.
    await _try(consumer.label, js.add_consumer(consumer.stream, wanted), _OTHER_VERSION)
    return Did.MADE if found is None else Did.CHANGED


async def _stream_found(js: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(name)).config
    except NotFoundError:
        return None


async def _create_stream(js: JetStreamContext, wanted: StreamConfig) -> None:
    for pause in (*STORE_PAUSES, None):
        try:
            await js.add_stream(wanted)
        except APIError as error:
            if pause is None or _STORE_FAILED not in (error.description or ""):
                _refuse(f"stream {wanted.name}", error, "make room for it, or raise its limits")
            await asyncio.sleep(pause)
        else:
            return


async def _consumer_found(js: JetStreamContext, consumer: Consumer) -> ConsumerConfig | None:
    try:
        found: ConsumerConfig = (await js.consumer_info(consumer.stream, consumer.name)).config
    except NotFoundError:
        return None
    return found


async def _try(thing: str, call: Awaitable[Any], remedy: str) -> None:
    try:
        await call
    except APIError as error:
        _refuse(thing, error, remedy)


def _refuse(thing: str, error: APIError, remedy: str) -> NoReturn:
    if error.err_code in _NOT_YET:
        raise error
    raise ProvisionError(f"{thing}: the broker refuses what is declared ({error.description}); {remedy}") from error


async def _look(thing: str, ask: Awaitable[Any], wanted: Any, names: tuple[str, ...]) -> list[Fault]:
    try:
        found = (await ask).config
    except NotFoundError:
        return [Fault(thing, f"missing; {_REMEDIES[thing.partition(' ')[0]]}")]
    return [
        Fault(thing, f"{name} is {given!r}, declared is {want!r}; {_CHANGE}")
        for name, (want, given) in differs(wanted, found, names).items()
    ]


def differs(wanted: Any, found: Any, names: tuple[str, ...]) -> Mapping[str, tuple[Any, Any]]:
    """The fields of two configurations that say different things: name → (wanted, found)."""
    pairs = {name: (_plain(getattr(wanted, name)), _plain(getattr(found, name))) for name in names}
    if "filter_subjects" in pairs:
        # One filter may come back in the singular field.
        single = getattr(found, "filter_subject", None)
        want, given = pairs["filter_subjects"]
        pairs["filter_subjects"] = (want, given or ([single] if single else given))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _plain(value: Any) -> Any:
    """The broker leaves out what is zero, false, unlimited or none; to us they are the same."""
    if isinstance(value, list | tuple):
        return sorted(value, key=str) or None
    return None if value == _UNLIMITED else value or None
