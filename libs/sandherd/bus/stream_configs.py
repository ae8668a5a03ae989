"""Configurations of streams, buckets and durable consumers for nats-server, made from `contracts.streams`. Pure."""

from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
)

from sandherd.contracts.streams import BUCKETS, STREAMS, Bucket, Consumer, Retention, Stream, live_subject


def stream_config(stream: Stream, replicas: int = 1) -> StreamConfig:
    """A stream's configuration. All streams are stored on disk and may be read by direct get."""
    return StreamConfig(
        name=stream.name,
        description=stream.description,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.retention is Retention.WORK_QUEUE else RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW if stream.refuse_when_full else DiscardPolicy.OLD,
        storage=StorageType.FILE,
        max_age=stream.max_age,
        max_bytes=stream.max_bytes,
        max_msgs_per_subject=stream.max_messages_per_subject,
        discard_new_per_subject=stream.refuse_when_full and stream.max_messages_per_subject > 0,
        duplicate_window=stream.duplicate_window,
        num_replicas=replicas,
        allow_direct=True,
        allow_msg_ttl=stream.per_message_ttl or None,
        republish=_republish(stream.subjects[0]) if stream.republished else None,
    )


def _republish(subject: str) -> RePublish:
    return RePublish(src=subject, dest=live_subject(subject))


def bucket_config(bucket: Bucket, replicas: int = 1) -> StreamConfig:
    """The configuration of a bucket's stream, as nats-py's key-value calls expect it. It stores one value per key.

    A message may have its own time to live. The stream stores no markers of expired messages, because markers require
    that rollups are allowed: in a bucket of several owners, one of them could delete all keys by `Nats-Rollup: all`.
    """
    return StreamConfig(
        name=bucket.stream,
        description=bucket.description,
        subjects=[f"$KV.{bucket.name}.>"],
        retention=RetentionPolicy.LIMITS,
        discard=DiscardPolicy.NEW,
        storage=StorageType.FILE,
        max_age=0,
        max_bytes=bucket.max_bytes,
        max_msgs_per_subject=1,
        duplicate_window=120,
        num_replicas=replicas,
        allow_direct=True,
        allow_rollup_hdrs=len(bucket.owners) == 1,
        allow_msg_ttl=True,
        deny_delete=not bucket.erasable,
    )


def consumer_config(consumer: Consumer) -> ConsumerConfig:
    """The configuration of a durable pull consumer.

    Services limit the deliveries themselves, so the broker has no limit. The consumer has as many replicas as its
    stream.
    """
    return ConsumerConfig(
        name=consumer.name,
        durable_name=consumer.name,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=consumer.ack_wait,
        max_deliver=-1,
        max_ack_pending=consumer.max_ack_pending,
        filter_subjects=list(consumer.filters),
    )


def declared_streams(replicas: int = 1) -> dict[str, StreamConfig]:
    """The configurations of all streams and of the streams of all buckets, by the stream's name."""
    return {
        **{stream.name: stream_config(stream, replicas) for stream in STREAMS},
        **{bucket.stream: bucket_config(bucket, replicas) for bucket in BUCKETS},
    }
