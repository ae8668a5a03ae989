"""A row of the table of log messages."""

from dataclasses import dataclass
from typing import Final

CHECK_BROKER: Final = "Check the broker with `sandherd doctor`."
REPORT: Final = "Report it with the traceback: it is a defect."
FREE_DISK: Final = "Free space on the broker's disk."


@dataclass(frozen=True)
class LogMessage:
    """One message. `fix` states what an operator has to do about it; it is empty if nothing has to be done."""

    level: str
    text: str
    meaning: str
    fix: str = ""


def info(text: str, meaning: str) -> LogMessage:
    """A message that needs no attention."""
    return LogMessage("info", text, meaning)


def warning(text: str, meaning: str, fix: str = "") -> LogMessage:
    """A message about a state that an operator may have to correct."""
    return LogMessage("warning", text, meaning, fix)


def error(text: str, meaning: str, fix: str) -> LogMessage:
    """A message about a state that an operator has to correct."""
    return LogMessage("error", text, meaning, fix)
