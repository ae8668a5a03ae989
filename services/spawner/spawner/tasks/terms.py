"""What a task or a sandbox is given: its own wishes, else its profile's, else the herd's; or why it can't be had."""

from dataclasses import dataclass
from typing import Final

from sandherd.contracts.specs import Limits


@dataclass(frozen=True)
class Terms:
    """What was resolved at submission, once: a later change of the herd's settings does not change it."""

    runtime: str = "process"
    limits: Limits = Limits()
    max_attempts: int = 3
    attempt_seconds: float | None = None


PLAIN: Final = Terms()
"""What a task is given that wishes nothing, where nothing is set."""
