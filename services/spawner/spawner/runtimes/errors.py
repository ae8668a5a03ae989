"""The error of a runtime, and its kinds."""

from enum import StrEnum

from sandherd.contracts.failures import ErrorType


class RuntimeFault(StrEnum):
    """Kinds of failure of a runtime. A closed set: decisions use it, never the text of a message."""

    REFUSED = ErrorType.RUNTIME_REFUSED
    """The runtime can't create this sandbox, or does not support the call."""
    UNAVAILABLE = ErrorType.RUNTIME_UNAVAILABLE
    """The call is not possible now, or the runtime has not responded and may have executed it. It can be repeated."""
    QUOTA = ErrorType.RUNTIME_QUOTA
    """The runtime has no capacity now."""
    LOST = ErrorType.SANDBOX_LOST
    """The runtime has no such sandbox."""


class RuntimeFailedError(Exception):
    """A call of a runtime failed. `fault` is the kind of failure."""

    def __init__(self, fault: RuntimeFault, message: str, *, wait: float | None = None) -> None:
        super().__init__(message)
        self.fault = fault
        self.wait = wait
        """The delay in seconds before the next request, if the runtime requests one."""

    @property
    def permanent(self) -> bool:
        """Whether a retry can't succeed."""
        return self.fault not in {RuntimeFault.UNAVAILABLE, RuntimeFault.QUOTA}
