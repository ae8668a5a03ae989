"""The JetStream API subjects that each use of a stream needs (ADR-8, ADR-15, ADR-31).

`prefix` is the beginning of each: `$JS.API` in the account of the streams, `$JS.herd.API` in every other account.
"""

from collections.abc import Iterator
from typing import Final

from sandherd.contracts.subscriptions import DOMAIN

API: Final = "$JS.API"
API_FROM_OUTSIDE: Final = f"$JS.{DOMAIN}.API"
"""The prefix of the API in an account without streams: that of a NATS client with a domain. To requests under
`$JS.API`, the broker would reply that the account has no JetStream."""


def consuming(stream: str, durable: str, prefix: str = API) -> Iterator[str]:
    """To bind one durable pull consumer, and to acknowledge what it delivers."""
    yield f"{prefix}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}"
    yield from acknowledging(stream, durable)


def acknowledging(stream: str, durable: str) -> Iterator[str]:
    """The old form of an acknowledgement's subject, of 9 tokens, and the new one, of 11 or more (NATS ADR-15).

    The tokens are counted: by the pattern of the new form with fewer of them, the old form for any other consumer
    would be permitted, `$JS.ACK.<its stream>.<its name>.<stream>.<durable>.1.2.3`.
    """
    yield f"$JS.ACK.{stream}.{durable}.*.*.*.*.*"
    yield f"$JS.ACK.*.*.{stream}.{durable}.*.*.*.*.>"


def making(stream: str) -> Iterator[str]:
    """To create and delete durable consumers of subscriptions; `permissions` denies deleting those of the table."""
    yield f"{API}.CONSUMER.CREATE.{stream}.*"
    yield f"{API}.CONSUMER.CREATE.{stream}.*.>"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"


def reading(stream: str, prefix: str = API) -> Iterator[str]:
    """To read single messages, by sequence or by subject."""
    yield f"{prefix}.STREAM.MSG.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}.>"


def inspecting(stream: str, prefix: str = API) -> Iterator[str]:
    """To inspect the progress of each durable consumer of the stream table."""
    from sandherd.contracts.streams import CONSUMERS  # it imports events, which a client does not need for a request

    yield from (f"{prefix}.CONSUMER.INFO.{stream}.{row.name}" for row in CONSUMERS if row.stream == stream)


def purging(stream: str) -> Iterator[str]:
    """To purge the oldest messages of a stream, and to see which must stay: those a durable consumer still needs."""
    yield f"{API}.STREAM.PURGE.{stream}"
    yield from inspecting(stream)


def watching(stream: str) -> Iterator[str]:
    """To watch a bucket as nats-py's `keys()` and `watch()` do: with an ordered consumer, which the broker names."""
    yield f"{API}.CONSUMER.CREATE.{stream}"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"
    yield f"$JS.FC.{stream}.>"


def creating_stream(stream: str, prefix: str = API) -> Iterator[str]:
    """To create a stream that does not exist, and to inspect one that does."""
    yield from (f"{prefix}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE"))


def declaring(stream: str) -> Iterator[str]:
    """To create a stream and to change its configuration, which can republish its messages or let them expire."""
    yield from creating_stream(stream)
    yield f"{API}.STREAM.UPDATE.{stream}"


def declaring_consumer(stream: str, durable: str) -> Iterator[str]:
    """To create and to change a durable consumer; a single filter is the end of the subject."""
    yield f"{API}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}.>"
