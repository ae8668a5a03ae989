"""Recognises replies that another sandbox has directed at this one's subjects.

The broker does not check the reply subject of a message, so an acknowledgement of the broker, or a reply of the
spawner, may be delivered where only requests are expected. It has no reply subject itself; a request always has one.
"""

from typing import Final

from nats.aio.msg import Msg

from sandherd.telemetry import logs

_FACTOR: Final = 10
_log: Final = logs.get("misdirected_replies")


class MisdirectedReplies:
    """Counts messages without a reply subject, and logs their number at 1, 10, 100 and so on."""

    def __init__(self) -> None:
        self.ignored = 0
        self._logged_at = 1

    def ignores(self, message: Msg) -> bool:
        """Whether a message is not a request, and must be ignored."""
        if message.reply:
            return False
        self.ignored += 1
        if self.ignored == self._logged_at:
            self._logged_at *= _FACTOR
            _log.warning("message without reply subject ignored", ignored=self.ignored)
        return True
