"""The kinds of failure of a runtime, and the error with which it fails."""

from enum import StrEnum

from sandherd.contracts.failures import ErrorType


class RuntimeFault(StrEnum):
    """Kinds of failure of a runtime. A closed set: decisions use it, never the text of a message."""

    REFUSED = ErrorType.RUNTIME_REFUSED  # the runtime can't create this sandbox, or does not support the call
    UNAVAILABLE = ErrorType.RUNTIME_UNAVAILABLE
    """The runtime can't do it now, or has not responded and may have done it. The request may be repeated."""
    QUOTA = ErrorType.RUNTIME_QUOTA  # the runtime has no capacity now
    LOST = ErrorType.SANDBOX_LOST
    """The runtime has no such sandbox."""


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
