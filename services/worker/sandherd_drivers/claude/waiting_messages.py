"""A message that was delivered to the program, and that the agent has not taken yet."""

from typing import Final, NamedTuple

NOTICE: Final = "notice"
"""The origin of a turn without one: the program began it by itself, such as at the end of a background task."""


class WaitingMessage(NamedTuple):
    """The task has no message id (None)."""

    message: str | None = None
    content: str = ""
    origin: str | None = None
    """What begins a turn that begins with it, as in `agent.turn_started`."""
