"""Interprets how an agent's program ended."""

import os
from collections.abc import Callable
from dataclasses import replace
from signal import SIGKILL, strsignal
from typing import Final

from sandherd.contracts.events.agent import AgentStreamError
from sandherd.contracts.events.call_facts import ToolOutcome
from sandherd_worker.harnesses.base import AgentEnd

_SHELL_SIGKILL_STATUS: Final = 128 + SIGKILL
_FOR_MEMORY: Final = "out of memory"


class MemoryKills:
    """Counts the processes that the kernel has killed for lack of memory since the creation of this object."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        self._count = count
        self._before = count()

    def new(self) -> int:
        """The number of kills since the creation; 0 if it is unknown."""
        now = self._count()
        return 0 if now is None or self._before is None else now - self._before


def end_of_exit(code: int, *, stopped: bool, memory_kills: int) -> AgentEnd:
    """Interpret an exit code. `memory_kills` is the number of out-of-memory kills while the program ran."""
    signal = -code if code < 0 else None
    if stopped:
        return AgentEnd(error_type="stopped", error="it was stopped", exit_code=_status(code), signal=signal)
    if code == 0:
        return AgentEnd(exit_code=0, stop_reason="exit")
    if memory_kills and code in {-SIGKILL, _SHELL_SIGKILL_STATUS}:
        return out_of_memory(AgentEnd(exit_code=_status(code)))
    if signal is not None:
        return AgentEnd(
            error_type="signal", error=f"it was ended by signal {signal} ({strsignal(signal)})", signal=signal
        )
    return AgentEnd(error_type="exit_status", error=f"it ended with exit status {code}", exit_code=code)


def call_outcome(ended: AgentEnd) -> ToolOutcome:
    """The outcome of the call that is the agent's entire program."""
    return "ok" if ended.error_type is None else "cancelled" if ended.error_type == "stopped" else "failed"


def not_started(program: str, error: OSError | ValueError) -> AgentEnd:
    """The end of a program that could not be started."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return AgentEnd(error_type="start", error=f"{program}: {reason}")


def out_of_memory(ended: AgentEnd) -> AgentEnd:
    """A copy of this end with lack of memory as its cause."""
    error = ": ".join(part for part in (_FOR_MEMORY, ended.error) if part)
    return replace(ended, error_type="out_of_memory", error=error, signal=int(SIGKILL))


def unexpected_end_event(ended: AgentEnd, turn: int, length: int) -> AgentStreamError:
    """The event for an agent's program that ended without a request. `length`: the number of output characters."""
    return AgentStreamError(
        turn=turn,
        error=ended.error,
        error_type="sigkill" if ended.signal == SIGKILL else "command_failed",
        final_output_length=length,
    )


def _status(code: int) -> int | None:
    return code if code >= 0 else None
