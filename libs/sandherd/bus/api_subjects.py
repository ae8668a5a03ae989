"""The broker's own subjects that each way of using a stream needs (ADR-8, ADR-15, ADR-31).

`prefix` is what they begin with: `$JS.API` in the account of the streams, `$JS.herd.API` in every other.
"""

from collections.abc import Iterator
from typing import Final

from sandherd.contracts.streams import CONSUMERS
from sandherd.contracts.subscriptions import DOMAIN

API: Final = "$JS.API"
API_FROM_OUTSIDE: Final = f"$JS.{DOMAIN}.API"
"""The same in an account without streams, as a client of NATS calls it when it is given the domain. Under `$JS.API` the
broker would answer that the account has no JetStream."""


def consuming(stream: str, durable: str, prefix: str = API) -> Iterator[str]:
    """Binding one durable pull consumer. Acknowledgements go to the old and to the new form of their subject."""
    yield f"{prefix}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{prefix}.CONSUMER.MSG.NEXT.{stream}.{durable}"
    yield f"$JS.ACK.{stream}.{durable}.>"
    yield f"$JS.ACK.*.*.{stream}.{durable}.>"


def making(stream: str) -> Iterator[str]:
    """Making durable consumers for others, and taking them away; `permissions` denies those that are somebody's."""
    yield f"{API}.CONSUMER.CREATE.{stream}.*"
    yield f"{API}.CONSUMER.CREATE.{stream}.*.>"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"


def reading(stream: str, prefix: str = API) -> Iterator[str]:
    """Taking single messages out, by sequence or by subject."""
    yield f"{prefix}.STREAM.MSG.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}"
    yield f"{prefix}.DIRECT.GET.{stream}.>"


def inspecting(stream: str, prefix: str = API) -> Iterator[str]:
    """Seeing how far each durable consumer of the stream table is."""
    yield from (f"{prefix}.CONSUMER.INFO.{stream}.{row.name}" for row in CONSUMERS if row.stream == stream)


def giving_room(stream: str) -> Iterator[str]:
    """Taking the oldest out of a stream, and seeing what must not be taken: what a durable consumer still has to do."""
    yield f"{API}.STREAM.PURGE.{stream}"
    yield from inspecting(stream)


def watching(stream: str) -> Iterator[str]:
    """Watching a bucket as nats-py's `keys()` and `watch()` do: an ordered consumer, which the broker names."""
    yield f"{API}.CONSUMER.CREATE.{stream}"
    yield f"{API}.CONSUMER.INFO.{stream}.*"
    yield f"{API}.CONSUMER.DELETE.{stream}.*"
    yield f"$JS.FC.{stream}.>"


def creating_stream(stream: str, prefix: str = API) -> Iterator[str]:
    """Creating a stream that does not exist, and inspecting one that does."""
    yield from (f"{prefix}.STREAM.{verb}.{stream}" for verb in ("INFO", "CREATE"))


def declaring(stream: str) -> Iterator[str]:
    """Creating a stream and changing its configuration, which can publish its messages again or let them expire."""
    yield from creating_stream(stream)
    yield f"{API}.STREAM.UPDATE.{stream}"


def declaring_consumer(stream: str, durable: str) -> Iterator[str]:
    """Making a durable consumer and changing it; a filter of its own stands at the end of the subject."""
    yield f"{API}.CONSUMER.INFO.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}"
    yield f"{API}.CONSUMER.CREATE.{stream}.{durable}.>"
