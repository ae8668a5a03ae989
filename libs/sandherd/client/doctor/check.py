"""A check of the doctor."""

from dataclasses import dataclass
from enum import StrEnum


class CheckState(StrEnum):
    """The result of a check. Tables show `look` as `warning`, and `wrong` as `error`."""

    RIGHT = "ok"
    WARNING = "look"
    WRONG = "wrong"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Check:
    """The result of one check, with its finding and remedy."""

    name: str
    state: CheckState
    found: str
    remedy: str | None = None
