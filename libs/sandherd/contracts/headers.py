"""The names of the headers of NATS messages. `TIMEOUT_HEADER` is in `contracts.requests`."""

from typing import Final

MESSAGE_ID: Final = "Nats-Msg-Id"
LIFETIME: Final = "Nats-TTL"
EXPECTED_LAST: Final = "Nats-Expected-Last-Subject-Sequence"
"""The broker stores the message only if the last message on its subject has this stream sequence; `0` means none."""
KV_OPERATION: Final = "KV-Operation"
"""Marks a message of a bucket as a delete marker: `DEL` or `PURGE`."""

SEQUENCE_HEADER: Final = "Nats-Sequence"
"""The stream sequence of a message. The broker sets it on republished messages and direct reads, not on
acknowledgements of published messages. Services reply without it."""
STORED_SUBJECT: Final = "Nats-Subject"
STORED_AT: Final = "Nats-Time-Stamp"
STORED_IN: Final = "Nats-Stream"
PREVIOUS: Final = "Nats-Last-Sequence"
REPUBLISHED: Final = (SEQUENCE_HEADER, STORED_SUBJECT, STORED_AT, STORED_IN, PREVIOUS)
"""The headers that the broker adds to a stored message when it republishes it."""

DEAD_SERVICE: Final = "Sandherd-Service"
DEAD_REASON: Final = "Sandherd-Reason"
DEAD_SUBJECT: Final = "Sandherd-Subject"
DEAD_STREAM: Final = "Sandherd-Stream"
DEAD_SEQUENCE: Final = "Sandherd-Stream-Sequence"
DEAD_SIZE: Final = "Sandherd-Size"
DEAD_EXCERPT: Final = "Sandherd-Excerpt"
DEAD: Final = (DEAD_SERVICE, DEAD_REASON, DEAD_SUBJECT, DEAD_STREAM, DEAD_SEQUENCE, DEAD_SIZE, DEAD_EXCERPT)
"""The headers of a dead letter in addition to its message id."""
