"""Describes why a supervisor or a part of its stack has ended, for users of `sandherd up`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from sandherd.lost_identity import lost_identity, lost_identity_remedy
from sandherd.stack.home import Home, read_record

_MAX_LINES: Final = 20
_PYTHON_ERROR: Final = re.compile(r"(?P<package>(\w+\.)*)\w+(Error|Exception): ")


class StackFailedError(Exception):
    """The stack did not start. The message has the problem and the folder of the logs; `remedy` is the fix."""

    remedy = "end what still runs with `sandherd down`, then retry"


class LostIdentityError(StackFailedError):
    """The herd's keys are missing, but the broker has stored data, to which new keys would give no access."""

    def __init__(self, problem: str, home: Path) -> None:
        super().__init__(problem)
        self.remedy = lost_identity_remedy(home)


def refuse_lost_identity(home: Path) -> None:
    """Raise `LostIdentityError` if the home has stored data and no keys. Called before new keys are created."""
    if problem := lost_identity(home):
        raise LostIdentityError(problem, home)


def cause_in(last_lines: str) -> str:
    """The error in the last lines of a part's log. If they have a traceback, only its error is returned.

    The class of the error is omitted if it is not one of Python's own.
    """
    lines = last_lines.splitlines()
    errors = [(number, match) for number, line in enumerate(lines) if (match := _PYTHON_ERROR.match(line))]
    if not errors:
        return last_lines
    number, match = errors[-1]
    first = lines[number][match.end() :] if match["package"] else lines[number]
    return "\n".join([first, *lines[number + 1 :]])


def why_ended(home: Home) -> str:
    """Why the supervisor has ended: its recorded error or the last lines of its log, and the folder of the logs."""
    record = read_record(home)
    if record is not None and record.error:
        return f"{record.error}\nThe logs are in {home.logs}."
    log = home.logs / "supervisor.log"
    lines = log.read_text(errors="replace").splitlines()[-_MAX_LINES:]
    return "\n".join(["the supervisor has ended:", *_reasons(lines), f"The logs are in {home.logs}."])


def _reasons(lines: Sequence[str]) -> Sequence[str]:
    """The error in the last line if that is a JSON line of our log, else all lines."""
    try:
        return [str(json.loads(lines[-1])["error"])]
    except (IndexError, ValueError, KeyError, TypeError):
        return lines
