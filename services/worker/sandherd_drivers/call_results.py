"""Values of a tool call from an agent's report, as events accept them: outcome, exit status, and counts."""

from dataclasses import dataclass
from typing import Any, Final

_MAX_EXIT_STATUS: Final = 2**31 - 1
_MAX_COUNT: Final = 2**53 - 1


@dataclass(frozen=True)
class CallResult:
    """An outcome as listed in `sandherd.contracts.events.call_facts`, and the exit status of a command."""

    outcome: str
    exit_code: int | None = None

    def fields(self) -> dict[str, Any]:
        """The fields of events about the end of the call."""
        return {"outcome": self.outcome, "exit_code": self.exit_code}


def exit_status(value: Any) -> int | None:
    """An exit status as an agent reports it; None for anything else."""
    is_status = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_EXIT_STATUS
    return value if is_status else None


def count(value: Any) -> int | None:
    """A count as an agent reports it; None for anything else."""
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MAX_COUNT
    return value if is_count else None


def result_of_status(status: int) -> CallResult:
    """The result of a command that ended with this status."""
    return CallResult("ok" if status == 0 else "failed", status)
