"""Logs the subjects that the broker does not permit to this process. A requester can cause any number of them.

A reply that comes too late, or for which the requester chose a subject that is not permitted, is refused with an error
for each.
"""

import re
import time
from typing import Final

from sandherd.telemetry import logs
from sandherd.telemetry.line_limit import LineLimit

_SUBJECT: Final = re.compile(r'"([^"]*)"')
_REPLY: Final = re.compile(r"(_R_|_INBOX[^.]*|\$JS\.ACK)\.", re.IGNORECASE)
"""Subjects of replies, each of which is used once: they count as one."""
_log: Final = logs.get("bus")


class DeniedSubjects:
    """Logs for each subject at most one line a minute, with the number of errors since the previous line."""

    def __init__(self) -> None:
        self._limit = LineLimit()

    def add(self, error: str) -> None:
        """Count the broker's error, and log it if a line is due."""
        if times := self._limit.add(source_of(error), time.monotonic()):
            _log.error("broker denied permission", error=error, times=times)


def source_of(error: str) -> str:
    """The key of an error: the operation and the subject, or the first part of a reply subject. Pure."""
    found = _SUBJECT.search(error)
    if found is None:
        return error
    reply = _REPLY.match(found[1])
    return error[: found.start()] + (reply[0].lower() if reply else found[1])
