"""What a check of `sandherd doctor` is."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a check found."""

    RIGHT = "ok"
    WORTH_A_LOOK = "look"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: State
    found: str
    remedy: str | None = None
