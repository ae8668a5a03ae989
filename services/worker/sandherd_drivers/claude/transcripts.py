"""The file that a session is kept in: where the program looks for it, what it says of money, whether it is whole."""

import asyncio
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_SESSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
_TAIL: Final = 1024 * 1024
_LOOKING: Final = 0.02
WRITING: Final = 2.0
"""How long what the agent has said may take to be in its transcript, in seconds."""
_LONGEST_NAME: Final = 200


class NoSessionError(Exception):
    """There is nothing to go on with. The text says why."""


def project(work_dir: str) -> str:
    """The name of the directory for the sessions of a work tree."""
    return re.sub(r"[^A-Za-z0-9]", "-", work_dir)[:_LONGEST_NAME]


def lay(transcript: str, session: str, config: Path, work_dir: str) -> Path:
    """Put a transcript where the program looks for it. Raises `NoSessionError`."""
    if not _SESSION.fullmatch(session):
        raise NoSessionError(f"{session[:100]!r} is no name of a session")
    place = expected(config, work_dir, session)
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(transcript, place)
    except OSError as error:
        raise NoSessionError(f"the transcript of {session} can't be read: {error.strerror}") from None
    return place


def expected(config: Path, work_dir: str, session: str) -> Path:
    """Where the program keeps a session that works in this tree."""
    return config / "projects" / project(work_dir) / f"{session}.jsonl"


def find(config: Path, session: str) -> Path | None:
    """The file of a session, if the program has written any."""
    return next(iter(sorted((config / "projects").glob(f"*/{session}.jsonl"))), None)


def spent(transcript: Path) -> tuple[float, Mapping[str, Any]]:
    """The totals that the program will count on from: it writes them down when it ends in order."""
    found: tuple[float, Mapping[str, Any]] = (0.0, {})
    with transcript.open(errors="replace") as lines:
        for line in lines:
            if '"cost-state"' in line:
                found = _totals(line) or found
    return found


def _totals(line: str) -> tuple[float, Mapping[str, Any]] | None:
    try:
        entry = json.loads(line)
        if entry["type"] == "cost-state":
            return float(entry["totalCostUSD"]), dict(entry.get("modelUsage") or {})
    except (ValueError, TypeError, KeyError):
        pass
    return None


async def written(transcript: Path, entry: str | None, patience: float = WRITING) -> None:
    """Wait until this entry is in the file; the program writes it a little after it was said."""
    if entry is None:
        return
    for _ in range(int(patience / _LOOKING)):
        if entry.encode() in _end(transcript):
            return
        await asyncio.sleep(_LOOKING)


def _end(transcript: Path) -> bytes:
    try:
        with transcript.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return file.read()
    except OSError:
        return b""
