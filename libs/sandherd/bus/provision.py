"""Creates and changes streams, durable consumers and buckets as declared in `contracts.streams`. Idempotent.

Written with plain nats-py, because FastStream's declaration of a stream resets it to FastStream's defaults.
"""

import asyncio
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, StreamConfig
from nats.js.errors import APIError, NotFoundError

from sandherd.backoff import Backoff
from sandherd.bus.auth.permissions import consumers_of, streams_of
from sandherd.bus.auth.setup_permissions import SetupOutcome
from sandherd.bus.errors import NO_LEADER
from sandherd.bus.storage_causes import Cause, cause_of
from sandherd.bus.stream_configs import consumer_config, declared_streams
from sandherd.contracts.streams import CONSUMERS, Consumer
from sandherd.contracts.subjects import Principal

_STREAM_FIELDS: Final = (
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
    # No stream declares these. If they are set, the broker copies, changes, refuses or discards messages.
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
_NOT_READY_CODES: Final = NO_LEADER | {10005, 10039}
"""Errors of servers that have just started: no leader, `JSClusterNoPeersErrF` and `JSNotEnabledForAccountErr`."""
STORE_BACKOFF: Final = Backoff(base=0.2, cap=1.6, jitter=0)
STORE_RETRIES: Final = 4
_STORE_FAILED: Final = "error creating store for stream"
"""Part of nats-server's error 10049, which it returns while a cluster forms, and if the disk is full. It is retried."""
_VERSION_REMEDY: Final = "another version may have created it: install that version again, or create a new herd"
_SPACE_REMEDY: Final = "free space on the broker's disk, or enlarge it; nothing of the herd has to be deleted"
_CONSUMER_FIELDS: Final = (
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
_CHANGE_REMEDY: Final = "run `sandherd provision --identity DIR`, or `sandherd up`"
_CHANGES_REFUSED: Final = (
    "{}: differs from the declaration, and this credential may only create; run `sandherd provision --identity DIR` "
    "with DIR the folder of the herd's keys"
)


class ProvisionError(Exception):
    """The broker refused a declaration. The message names the declaration, and contains the remedy."""


@dataclass(frozen=True)
class Provisioned:
    """What set-up has done with a declared stream or consumer. `thing` is its name, for example `stream EVENTS`."""

    thing: str
    did: SetupOutcome


@dataclass(frozen=True)
class ConfigDrift:
    """A stream or consumer that is missing or differs from its declaration. `thing` is its name: `stream EVENTS`."""

    thing: str
    problem: str

    def __str__(self) -> str:
        return f"{self.thing}: {self.problem}"


async def provision(js: JetStreamContext, replicas: int | None = None) -> list[Provisioned]:
    """Create missing streams and consumers, and change those that differ from their declaration.

    `replicas` is the number of servers that store each stream. Without it, existing streams keep their number, and new
    ones have 1. Raises `ProvisionError` if the broker refuses, and nats-py's `Error`, also if a cluster is not ready.
    """
    fields = (*_STREAM_FIELDS, _REPLICAS) if replicas else _STREAM_FIELDS
    provisioned = [
        Provisioned(f"stream {name}", await _ensure_stream(js, name, config, fields))
        for name, config in declared_streams(replicas or 1).items()
    ]
    return provisioned + [Provisioned(consumer.label, await _ensure_consumer(js, consumer)) for consumer in CONSUMERS]


async def create_missing(js: JetStreamContext, replicas: int | None = None) -> list[Provisioned]:
    """Create missing streams, for a credential that may only create. Raises as `provision` does.

    If a stream or consumer differs from its declaration, raises `ProvisionError` after all missing streams are created,
    because a change requires another credential. The spawner creates missing consumers.
    """
    fields = (*_STREAM_FIELDS, _REPLICAS) if replicas else _STREAM_FIELDS
    provisioned, different = [], []
    for name, config in declared_streams(replicas or 1).items():
        thing, current = f"stream {name}", await _read_stream(js, name)
        if current is None:
            await _create_stream(js, config)
        elif differing := differing_fields(config, current, fields):
            different.append(f"{thing} ({', '.join(differing)})")
        provisioned.append(Provisioned(thing, SetupOutcome.UNCHANGED if current else SetupOutcome.CREATED))
    for consumer in CONSUMERS:
        existing = await _read_consumer(js, consumer)
        if existing and (differing := differing_fields(consumer_config(consumer), existing, _CONSUMER_FIELDS)):
            different.append(f"{consumer.label} ({', '.join(differing)})")
        provisioned.append(Provisioned(consumer.label, SetupOutcome.UNCHANGED if existing else SetupOutcome.PENDING))
    if different:
        raise ProvisionError(_CHANGES_REFUSED.format("; ".join(different)))
    return provisioned


async def check(js: JetStreamContext, service: Principal) -> list[ConfigDrift]:
    """The streams and consumers of a service that are missing or differ from their declaration; empty if none.

    Uses only requests that the service's own credential permits.
    """
    drifts: list[ConfigDrift] = []
    declared = declared_streams()
    for name in streams_of(service):
        drifts += await _drift_of(f"stream {name}", js.stream_info(name), declared[name], _STREAM_FIELDS)
    for consumer in consumers_of(service):
        drifts += await _drift_of(
            consumer.label,
            js.consumer_info(consumer.stream, consumer.name),
            consumer_config(consumer),
            _CONSUMER_FIELDS,
        )
    return drifts


async def _ensure_stream(js: JetStreamContext, name: str, config: StreamConfig, names: tuple[str, ...]) -> SetupOutcome:
    current = await _read_stream(js, name)
    if current is None:
        await _create_stream(js, config)
        return SetupOutcome.CREATED
    if not differing_fields(config, current, names):
        return SetupOutcome.UNCHANGED
    if _REPLICAS not in names:
        config = config.evolve(num_replicas=current.num_replicas)
    await _request_change(f"stream {name}", js.update_stream(config), _VERSION_REMEDY)
    return SetupOutcome.CHANGED


async def _ensure_consumer(js: JetStreamContext, consumer: Consumer) -> SetupOutcome:
    declared = consumer_config(consumer)
    current = await _read_consumer(js, consumer)
    if current is not None and not differing_fields(declared, current, _CONSUMER_FIELDS):
        return SetupOutcome.UNCHANGED
    # Creating an existing consumer changes it, if permitted; its position in the stream stays.
    await _request_change(consumer.label, js.add_consumer(consumer.stream, declared), _VERSION_REMEDY)
    return SetupOutcome.CREATED if current is None else SetupOutcome.CHANGED


async def _read_stream(js: JetStreamContext, name: str) -> StreamConfig | None:
    try:
        return (await js.stream_info(name)).config
    except NotFoundError:
        return None


async def _create_stream(js: JetStreamContext, config: StreamConfig) -> None:
    for attempt in range(STORE_RETRIES + 1):
        try:
            await js.add_stream(config)
        except APIError as error:
            if attempt == STORE_RETRIES or _STORE_FAILED not in (error.description or ""):
                _refuse(f"stream {config.name}", error, "free space for it, or raise its limits")
            await asyncio.sleep(STORE_BACKOFF.delay(attempt))
        else:
            return


async def _read_consumer(js: JetStreamContext, consumer: Consumer) -> ConsumerConfig | None:
    try:
        config: ConsumerConfig = (await js.consumer_info(consumer.stream, consumer.name)).config
    except NotFoundError:
        return None
    return config


async def _request_change(thing: str, call: Awaitable[Any], remedy: str) -> None:
    try:
        await call
    except APIError as error:
        _refuse(thing, error, remedy)


def _refuse(thing: str, error: APIError, remedy: str) -> NoReturn:
    if error.err_code in _NOT_READY_CODES:
        raise error
    fix = _SPACE_REMEDY if cause_of(error.description or "") is Cause.DISK_BYTES else remedy
    raise ProvisionError(f"{thing}: the broker refuses the declaration ({error.description}); {fix}") from error


async def _drift_of(thing: str, request: Awaitable[Any], declared: Any, names: tuple[str, ...]) -> list[ConfigDrift]:
    try:
        current = (await request).config
    except NotFoundError:
        return [ConfigDrift(thing, f"missing; {_REMEDIES[thing.partition(' ')[0]]}")]
    return [
        ConfigDrift(thing, f"{name} is {actual!r}, but {declared_value!r} is declared; {_CHANGE_REMEDY}")
        for name, (declared_value, actual) in differing_fields(declared, current, names).items()
    ]


def differing_fields(declared: Any, current: Any, names: tuple[str, ...]) -> Mapping[str, tuple[Any, Any]]:
    """The fields `names` in which two configurations differ: name → (declared, current)."""
    pairs = {name: (_normalise(getattr(declared, name)), _normalise(getattr(current, name))) for name in names}
    if "filter_subjects" in pairs:
        # The broker may return a single filter in the singular field.
        single = getattr(current, "filter_subject", None)
        declared_value, actual = pairs["filter_subjects"]
        pairs["filter_subjects"] = (declared_value, actual or ([single] if single else actual))
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _normalise(value: Any) -> Any:
    """Replace 0, False and -1 (unlimited) by None: they count as equal, because the broker omits such fields."""
    normalised = sorted(value, key=str) if isinstance(value, list | tuple) else value
    return None if normalised == _UNLIMITED else normalised or None
