"""Recognises messages that the broker has republished from a stream, on subjects where others can direct replies."""

from nats.aio.msg import Msg

from sandherd.contracts.headers import SEQUENCE_HEADER
from sandherd.contracts.subjects import covers


def is_republished(message: Msg, pattern: str) -> bool:
    """Whether a message of the subscription to `pattern` was stored on that subject and then republished.

    The broker sets a header that no acknowledgement and no reply of a service has. A message that was pulled from a
    consumer has its publisher's headers, but the subject on which it was stored, and a reply subject.
    """
    stored = SEQUENCE_HEADER in (message.headers or {})
    return stored and not message.reply and covers(pattern, message.subject)
