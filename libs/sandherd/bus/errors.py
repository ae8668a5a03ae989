"""What may go wrong between us and the broker."""

from typing import Final

from sandherd.contracts.errors import Problem

_STORE_FAILED: Final = 10077
"""The broker's error `JSStreamStoreFailedF`: a stream that refuses when it is full says it with this number."""
NOBODY_LEADS: Final = frozenset({10008, 10009})
"""The broker's errors `JSClusterNotAvailErr` and `JSClusterNotLeaderErr`: an election is on."""
_OF_SUBJECT: Final = "per subject"
"""It says in words alone that it is not the stream that is full, but its share for one subject."""


class BusError(Exception):
    """Something said on the broker did not get through."""


class PublishFailedError(BusError):
    """The broker did not acknowledge; the same message may be published again."""


class ConnectionLostError(PublishFailedError):
    """The connection was lost before the acknowledgement came."""


class LeaderlessError(PublishFailedError):
    """Nobody answers for the stream: of several servers the one that led is lost, and the others elect another."""


class StreamFullError(PublishFailedError):
    """The stream has no room for it now. That ends when room is given, so it is tried again, and never given up."""


class SubjectFullError(BusError):
    """As many wait on this subject as may. Whoever wanted it said is told, and the others go on."""


class PublishRefusedError(BusError):
    """The broker will never take this message as it is."""


class NoResponderError(BusError):
    """Nobody answers on that subject."""


class RequestTimeoutError(BusError):
    """No answer came in time."""


class RefusedError(BusError):
    """The service answered with a refusal. `problem` says why and what to do."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def failure_of(code: int | None, description: str | None) -> type[BusError]:
    """What a broker's answer to a publication means, by its number and its words."""
    if code in NOBODY_LEADS:
        return LeaderlessError
    if code != _STORE_FAILED:
        return PublishFailedError
    return SubjectFullError if _OF_SUBJECT in (description or "") else StreamFullError
