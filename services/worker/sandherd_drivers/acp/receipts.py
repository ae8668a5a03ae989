"""The messages for the agent: each is given once, however often it comes, and has one receipt at a time."""

import time
from collections.abc import Callable
from typing import Final

from sandherd_drivers.commands import EXPIRED
from sandherd_drivers.wire import Message, Wire

_LONGEST_REASON: Final = 2_000
_FRAMES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""So that the agent can tell who speaks: all that it is given looks like its user's words to it."""


class Receipts:
    """Which messages wait, which are on their way, and which the agent has."""

    def __init__(self, wire: Wire, clock: Callable[[], float] = time.time) -> None:
        self._wire, self._clock = wire, clock
        self.waiting: list[Message] = []
        self._given: list[Message] = []
        self._known: set[str] = set()
        self._taken: set[str] = set()

    def hear(self, message: Message) -> bool:
        """Whether this is a new message, which now waits. One that the agent has is acknowledged again."""
        if message.message in self._taken:
            self._wire.taken(message.message)
        if message.message in self._known:
            return False
        self._known.add(message.message)
        self.waiting.append(message)
        return True

    def in_time(self) -> bool:
        """Whether something waits that has not expired; what has will not be given."""
        now = self._clock()
        for message in [message for message in self.waiting if message.expired(now)]:
            self.waiting.remove(message)
            self._refuse(message, EXPIRED)
        return bool(self.waiting)

    def give(self) -> list[str]:
        """The texts of all that waits, in order; it is on its way now."""
        self._given, self.waiting = self.waiting, []
        return [text_of(message) for message in self._given]

    def taken(self) -> None:
        """The agent has what was on its way."""
        for message in self._given:
            self._taken.add(message.message)
            self._wire.taken(message.message)
        self._given = []

    def not_taken(self, reason: str) -> None:
        """What is still on its way has not come to the agent; it may be sent again."""
        for message in self._given:
            self._refuse(message, reason)
        self._given = []

    def close(self, reason: str) -> None:
        """Nothing more is given."""
        self._given += self.waiting
        self.waiting = []
        self.not_taken(reason)

    def _refuse(self, message: Message, reason: str) -> None:
        self._known.discard(message.message)
        self._wire.refused(message.message, reason[:_LONGEST_REASON])


def text_of(message: Message) -> str:
    """What the agent is given, which says who speaks unless it does so itself."""
    frame = _FRAMES.get(message.message_type, "")
    return message.content if message.content.startswith("[") else f"{frame}{message.content}"
