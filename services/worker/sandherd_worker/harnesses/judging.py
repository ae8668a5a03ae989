"""What it means how an agent's program ended."""

import os
from collections.abc import Callable
from dataclasses import replace
from signal import SIGKILL, strsignal
from typing import Final

from sandherd.contracts.events.agent import AgentStreamError
from sandherd_worker.harnesses.base import Ended

_SHELL_SAYS_KILLED: Final = 128 + SIGKILL
_FOR_MEMORY: Final = "it was killed for want of memory"


class MemoryKills:
    """How often the kernel has killed for memory since this was made; 0 where that can't be seen."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        self._count = count
        self._before = count()

    def new(self) -> int:
        """Look now."""
        now = self._count()
        return 0 if now is None or self._before is None else now - self._before


def judge(code: int, *, stopped: bool, memory_kills: int) -> Ended:
    """What an exit code means. `memory_kills` is how often the kernel has killed for memory while it ran."""
    signal = -code if code < 0 else None
    if stopped:
        return Ended(error_type="stopped", error="it was stopped", exit_code=_status(code), signal=signal)
    if code == 0:
        return Ended(exit_code=0, stop_reason="exit")
    if memory_kills and code in {-SIGKILL, _SHELL_SAYS_KILLED}:
        return for_memory(Ended(exit_code=_status(code)))
    if signal is not None:
        return Ended(error_type="signal", error=f"it was ended by signal {signal} ({strsignal(signal)})", signal=signal)
    return Ended(error_type="exit_status", error=f"it ended with exit status {code}", exit_code=code)


def not_started(program: str, error: OSError | ValueError) -> Ended:
    """The end of what could not be started."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    return Ended(error_type="start", error=f"{program}: {reason}")


def for_memory(ended: Ended) -> Ended:
    """The same end, of one whom the kernel has killed for memory."""
    told = ": ".join(part for part in (_FOR_MEMORY, ended.error) if part)
    return replace(ended, error_type="out_of_memory", error=told, signal=int(SIGKILL))


def broke_off(ended: Ended, turn: int, length: int) -> AgentStreamError:
    """What is said of an agent's program that ended by itself; `length` is how much of its output is kept."""
    return AgentStreamError(
        turn=turn,
        error=ended.error,
        error_type="sigkill" if ended.signal == SIGKILL else "command_failed",
        final_output_length=length,
    )


def _status(code: int) -> int | None:
    return code if code >= 0 else None
