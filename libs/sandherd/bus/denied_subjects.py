"""Logs permission errors of the broker, with a limit, because a requester can cause any number of them in a service.

The broker refuses a reply with an error if it is too late, or if the requester chose a reply subject that is not
permitted.
"""

import re
import time
from typing import Final

from sandherd.telemetry import logs
from sandherd.telemetry.line_limit import LineLimit

_SUBJECT: Final = re.compile(r'"([^"]*)"')
_REPLY: Final = re.compile(r"(_R_|_INBOX[^.]*|\$JS\.ACK)\.", re.IGNORECASE)
"""The beginning of a reply subject. Each reply subject is used once, so all with the same beginning count as one."""
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
    """The key by which errors are counted: the operation with the subject, or with the beginning of a reply subject."""
    match = _SUBJECT.search(error)
    if match is None:
        return error
    reply = _REPLY.match(match[1])
    return error[: match.start()] + (reply[0].lower() if reply else match[1])
