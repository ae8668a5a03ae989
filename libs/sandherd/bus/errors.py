"""Errors of the connection to the broker."""

from typing import Final

from sandherd.contracts.errors import Problem

_STORE_FAILED: Final = 10077
"""The broker's error `JSStreamStoreFailedF`: the reply of a full stream with `discard: new`."""
WRONG_LAST_SEQUENCE: Final = 10071
"""The broker's error `JSStreamWrongLastSequenceErrF`."""
NO_LEADER: Final = frozenset({10008, 10009})
"""The broker's errors `JSClusterNotAvailErr` and `JSClusterNotLeaderErr`: a leader election is in progress."""
_SUBJECT_FULL_TEXT: Final = "per subject"
"""A part of the error's description if a subject is full. The code is the same as for a full stream."""


class BusError(Exception):
    """A broker operation failed."""


class TlsError(BusError):
    """TLS is required, but one of its files is invalid, the handshake has failed, or the server has no TLS."""


class PublishFailedError(BusError):
    """The broker did not acknowledge the message. It may be published again with the same id."""


class ConnectionLostError(PublishFailedError):
    """The connection was lost before the acknowledgement was received."""


class LeaderlessError(PublishFailedError):
    """The stream has no leader at present, because its leader was lost and the other servers elect a new one."""


class StreamFullError(PublishFailedError):
    """The stream is full now. It accepts messages again when space is freed, so publishes are retried without limit."""


class SubjectFullError(BusError):
    """The subject has its maximum number of stored messages. Other subjects are not affected."""


class WrongLastSequenceError(PublishFailedError):
    """The last message on the subject has another sequence than the one that the publisher expects."""


class PublishRefusedError(BusError):
    """The broker will never accept this message as it is."""


class NoResponderError(BusError):
    """The subject of the request has no subscriber."""


class RequestTimeoutError(BusError):
    """No reply was received in time."""


class RefusedError(BusError):
    """The service refused the request. `problem` has the reason and the remedy."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def failure_of(code: int | None, description: str | None) -> type[BusError]:
    """The error class for the broker's error reply to a publish, by its code and its description."""
    if code in NO_LEADER:
        return LeaderlessError
    if code == WRONG_LAST_SEQUENCE:
        return WrongLastSequenceError
    if code != _STORE_FAILED:
        return PublishFailedError
    return SubjectFullError if _SUBJECT_FULL_TEXT in (description or "") else StreamFullError
