"""A message that was delivered to the program, and that the agent has not taken yet."""

from typing import Final, NamedTuple

NOTICE: Final = "notice"
"""The origin of a turn that the program began by itself, for example at the end of a background task."""


class WaitingMessage(NamedTuple):
    """A waiting message. `message` is its id; None for the task."""

    message: str | None = None
    content: str = ""
    origin: str | None = None
    """The origin of a turn that this message begins, as in `agent.turn_started`."""
