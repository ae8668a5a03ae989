"""Recognises messages that the broker has republished from a stream.

On the same subjects, other principals may have replies delivered to imitate such messages.
"""

from nats.aio.msg import Msg

from sandherd.contracts.headers import SEQUENCE_HEADER
from sandherd.contracts.subjects import covers


def is_republished(message: Msg, pattern: str) -> bool:
    """Whether a message of the subscription to `pattern` was stored on that subject and then republished.

    The broker sets a header on republished messages. Acknowledgements and replies of services don't have it. A message
    that is pulled from a consumer may have it, because its publisher chose the headers, but has a reply subject, too.
    """
    has_sequence_header = SEQUENCE_HEADER in (message.headers or {})
    return has_sequence_header and not message.reply and covers(pattern, message.subject)
