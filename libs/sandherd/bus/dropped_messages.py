"""Counts received messages that nats-py dropped because the queue of their subscription was full."""

from typing import Final

import nats.errors

from sandherd.telemetry import logs

_LOG_FACTOR: Final = 10
_log: Final = logs.get("bus")


class DroppedMessages:
    """The number of messages that one connection has dropped."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = 1

    def add(self, error: nats.errors.SlowConsumerError) -> None:
        """Count one message. To limit the log, only the 1st, the 10th, the 100th and so on is logged."""
        self.count += 1
        if self.count == self._logged_at:
            self._logged_at *= _LOG_FACTOR
            _log.warning("received messages dropped, queue full", subject=error.subject, dropped=self.count)
