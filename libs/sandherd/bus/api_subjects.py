"""The subjects of the JetStream API that a user needs for each use of a stream (ADR-8, ADR-15, ADR-31).

`prefix` is the beginning of each subject: `$JS.API` in the account of the streams, `$JS.herd.API` in all others.
"""

from collections.abc import Iterator
from typing import Final

from sandherd.contracts.subscriptions import DOMAIN

API: Final = "$JS.API"
API_FROM_OUTSIDE: Final = f"$JS.{DOMAIN}.API"
"""The prefix of the API in an account without streams, as NATS clients use it with a JetStream domain. To a request
under `$JS.API`, the broker would reply that JetStream is not enabled for the account."""


def consuming(stream: str, durable: str, prefix: str = API) -> Iterator[str]:
    """The subjects to bind one durable pull consumer, and to acknowledge what it delivers."""
    yield f"{prefix}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}"
    yield from acknowledging(stream, durable)


def acknowledging(stream: str, durable: str) -> Iterator[str]:
    """The subjects to acknowledge messages: an old form of 9 tokens, and a new one of 11 or more (ADR-15).

    The pattern of the new form requires 11 tokens. A shorter pattern would also match the old form for another
    consumer: `$JS.ACK.<its stream>.<its name>.<stream>.<durable>.1.2.3`.
    """
    yield f"$JS.ACK.{stream}.{durable}.*.*.*.*.*"
    yield f"$JS.ACK.*.*.{stream}.{durable}.*.*.*.*.>"


def managing_consumers(stream: str) -> Iterator[str]:
    """The subjects to create, inspect and delete durable consumers of subscriptions.

    The module `permissions` denies deleting the consumers of the stream table.
    """
    yield f"{API}.CONSUMER.CREATE.{stream}.*"
    yield f"{API}.CONSUMER.CREATE.{stream}.*.>"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"


def reading(stream: str, prefix: str = API) -> Iterator[str]:
    """The subjects to read single messages, by sequence or by subject."""
    yield f"{prefix}.STREAM.MSG.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}.>"


def inspecting(stream: str, prefix: str = API) -> Iterator[str]:
    """The subjects to inspect the progress of each durable consumer that the stream table has for this stream."""
    from sandherd.contracts.streams import CONSUMERS  # imported late: it imports events, which most clients don't need

    yield from (f"{prefix}.CONSUMER.INFO.{stream}.{row.name}" for row in CONSUMERS if row.stream == stream)


def purging(stream: str) -> Iterator[str]:
    """The subjects to purge a stream's oldest messages, and to find out which ones a durable consumer needs."""
    yield f"{API}.STREAM.PURGE.{stream}"
    yield from inspecting(stream)


def watching(stream: str) -> Iterator[str]:
    """The subjects for nats-py's `keys()` and `watch()` of a bucket, by an ordered consumer that the broker names."""
    yield f"{API}.CONSUMER.CREATE.{stream}"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"
    yield f"$JS.FC.{stream}.>"


def creating_stream(stream: str, prefix: str = API) -> Iterator[str]:
    """The subjects to create a missing stream, and to inspect an existing one."""
    yield from (f"{prefix}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE"))


def declaring(stream: str) -> Iterator[str]:
    """The subjects to create a stream, and to change its configuration.

    A changed stream can republish messages or expire them.
    """
    yield from creating_stream(stream)
    yield f"{API}.STREAM.UPDATE.{stream}"


def declaring_consumer(stream: str, durable: str) -> Iterator[str]:
    """The subjects to create and to change a durable consumer.

    If it has a single filter, the subject ends with that filter.
    """
    yield f"{API}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}.>"
