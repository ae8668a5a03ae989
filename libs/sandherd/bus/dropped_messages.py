"""Counts messages that the client library drops, as too many of their subscription wait, and logs few of them."""

from typing import Final

import nats.errors

from sandherd.telemetry import logs

_FACTOR: Final = 10
_log: Final = logs.get("bus")


class DroppedMessages:
    """Logs their number when it is 1, 10, 100 and so on: a flood must not fill the log."""

    def __init__(self) -> None:
        self.count = 0
        self._logged_at = 1

    def include(self, error: Exception) -> bool:
        """Whether an error is that a message was dropped, which is then counted."""
        if not isinstance(error, nats.errors.SlowConsumerError):
            return False
        self.count += 1
        if self.count == self._logged_at:
            self._logged_at *= _FACTOR
            _log.warning("received messages dropped, too many wait", subject=error.subject, dropped=self.count)
        return True
