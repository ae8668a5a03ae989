"""Why a supervisor has ended, for the users of `up`."""

import json
from collections.abc import Sequence
from typing import Final

from sandherd.stack.home import Home, read_record

_LAST_LINES: Final = 20


def why_ended(home: Home) -> str:
    """The recorded error, else the last lines of its log, and the folder of the logs."""
    record = read_record(home)
    if record is not None and record.error:
        return f"{record.error}\nThe logs are in {home.logs}."
    log = home.logs / "supervisor.log"
    lines = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
    return "\n".join(["the supervisor has ended:", *_reasons(lines), f"The logs are in {home.logs}."])


def _reasons(lines: Sequence[str]) -> Sequence[str]:
    """The error of the last line if it is one of our log, else all lines."""
    try:
        return [str(json.loads(lines[-1])["error"])]
    except (IndexError, ValueError, KeyError, TypeError):
        return lines
