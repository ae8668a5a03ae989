"""What may go wrong between us and the broker."""

from sandherd.contracts.errors import Problem


class BusError(Exception):
    """Something said on the broker did not get through."""


class PublishFailedError(BusError):
    """The broker did not acknowledge; the same message may be published again."""


class ConnectionLostError(PublishFailedError):
    """The connection was lost before the acknowledgement came."""


class StreamFullError(PublishFailedError):
    """The stream has no room for it now. That ends when room is given, so it is tried again, and never given up."""


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
