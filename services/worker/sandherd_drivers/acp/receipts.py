"""The messages for the agent: each is passed on once, even if it is delivered again, and its receipt is reported."""

import time
from collections.abc import Callable
from typing import Final

from sandherd_drivers.commands import EXPIRED, origin_of_turn
from sandherd_drivers.wire import Message, Wire

_MAX_REASON_LENGTH: Final = 2_000
_SENDER_PREFIXES: Final = {"guardian_nudge": "[GUARDIAN INTERVENTION] ", "system": "[SYSTEM NOTE] "}
"""The mark for the sender, by type of message, because the agent gets every message as one of its user."""


class PromptReceipts:
    """Tracks which messages wait, which were sent, and which the agent has taken."""

    def __init__(self, wire: Wire, clock: Callable[[], float] = time.time) -> None:
        self._wire, self._clock = wire, clock
        self.waiting: list[Message] = []
        self._sent_messages: list[Message] = []
        self._accepted_messages: set[str] = set()
        self._taken_messages: set[str] = set()

    def accept(self, message: Message) -> bool:
        """Add a message to those that wait. Returns False if it was accepted before.

        If the agent has already taken the message, that is reported again.
        """
        if message.message in self._taken_messages:
            self._wire.report_taken(message.message)
        if message.message in self._accepted_messages:
            return False
        self._accepted_messages.add(message.message)
        self.waiting.append(message)
        return True

    def refuse_expired(self) -> bool:
        """Refuse expired messages, and return whether any other message waits."""
        now = self._clock()
        for message in [message for message in self.waiting if message.is_expired(now)]:
            self.waiting.remove(message)
            self._refuse(message, EXPIRED)
        return bool(self.waiting)

    def next_prompt(self) -> list[str]:
        """The texts of all waiting messages, in order. From now on, the messages count as sent."""
        self._sent_messages, self.waiting = self.waiting, []
        return [prompt_text(message) for message in self._sent_messages]

    @property
    def origin(self) -> str | None:
        """The origin of the turn that the sent messages begin, as in `agent.turn_started`."""
        return origin_of_turn(message.origin for message in self._sent_messages)

    def mark_taken(self) -> None:
        """Report the sent messages as taken."""
        for message in self._sent_messages:
            self._taken_messages.add(message.message)
            self._wire.report_taken(message.message)
        self._sent_messages = []

    def refuse_sent(self, reason: str) -> None:
        """Refuse the sent messages, which have not reached the agent; they may be delivered again."""
        for message in self._sent_messages:
            self._refuse(message, reason)
        self._sent_messages = []

    def close(self, reason: str) -> None:
        """Refuse all messages that the agent has not taken."""
        self._sent_messages += self.waiting
        self.waiting = []
        self.refuse_sent(reason)

    def _refuse(self, message: Message, reason: str) -> None:
        self._accepted_messages.discard(message.message)
        self._wire.report_refused(message.message, reason[:_MAX_REASON_LENGTH])


def prompt_text(message: Message) -> str:
    """The text for the agent, with a mark for the sender unless the text already begins with a mark."""
    prefix = _SENDER_PREFIXES.get(message.message_type, "")
    return message.content if message.content.startswith("[") else f"{prefix}{message.content}"
