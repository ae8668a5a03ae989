"""How a runtime fails: the kinds of failure, and the error that has one."""

from enum import StrEnum

from sandherd.contracts.failures import ErrorType


class RuntimeFault(StrEnum):
    """Kinds of failure of a runtime. A closed set: decisions use it, never the text of a message."""

    REFUSED = ErrorType.RUNTIME_REFUSED  # it never creates this sandbox as requested, or does not support this
    UNAVAILABLE = ErrorType.RUNTIME_UNAVAILABLE
    """It can't now, or has not responded: it may have done it. The same may be requested again."""
    QUOTA = ErrorType.RUNTIME_QUOTA  # no capacity now
    LOST = ErrorType.SANDBOX_LOST
    """It has no such sandbox."""


class RuntimeFailedError(Exception):
    """A runtime did not do what was requested. `fault` is the kind of failure."""

    def __init__(self, fault: RuntimeFault, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.wait = wait
        """Seconds to wait before the next request, if the runtime states them."""

    @property
    def permanent(self) -> bool:
        """Whether a retry can't succeed."""
        return self.fault not in {RuntimeFault.UNAVAILABLE, RuntimeFault.QUOTA}
