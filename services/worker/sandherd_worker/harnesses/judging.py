"""What it means how an agent's program ended."""

from collections.abc import Callable
from signal import SIGKILL, strsignal
from typing import Final

from sandherd_worker.harnesses.base import Ended

_SHELL_SAYS_KILLED: Final = 128 + SIGKILL


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
        text = "it was killed for want of memory"
        return Ended(error_type="out_of_memory", error=text, exit_code=_status(code), signal=int(SIGKILL))
    if signal is not None:
        return Ended(error_type="signal", error=f"it was ended by signal {signal} ({strsignal(signal)})", signal=signal)
    return Ended(error_type="exit_status", error=f"it ended with exit status {code}", exit_code=code)


def _status(code: int) -> int | None:
    return code if code >= 0 else None
