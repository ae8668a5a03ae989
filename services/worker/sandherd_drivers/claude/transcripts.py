"""A session's transcript file: where the program reads it, the totals in it, and whether it is complete."""

import asyncio
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

_SESSION_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,99}")
_SEARCHED_TAIL_BYTES: Final = 1024 * 1024
_POLL_SECONDS: Final = 0.02
WRITE_SECONDS: Final = 2.0
"""How long the program may take to write the agent's output to the transcript, in seconds."""
_MAX_PROJECT_NAME_LENGTH: Final = 200


class NoSessionError(Exception):
    """There is no session to resume; the message gives the reason."""


def project_name(work_dir: str) -> str:
    """The name of the directory for the sessions of a work tree."""
    return re.sub(r"[^A-Za-z0-9]", "-", work_dir)[:_MAX_PROJECT_NAME_LENGTH]


def restore(transcript: str, session: str, config: Path, work_dir: str) -> Path:
    """Copy a transcript to where the program reads it. Raises `NoSessionError`."""
    if not _SESSION_ID.fullmatch(session):
        raise NoSessionError(f"{session[:100]!r} is not a valid session id")
    path = expected_path(config, work_dir, session)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        shutil.copyfile(transcript, path)
    except OSError as error:
        raise NoSessionError(f"the transcript of {session} can't be read: {error.strerror}") from None
    return path


def expected_path(config: Path, work_dir: str, session: str) -> Path:
    """The file in which the program stores a session of this work tree."""
    return config / "projects" / project_name(work_dir) / f"{session}.jsonl"


def find_transcript(config: Path, session: str) -> Path | None:
    """The file of a session, if the program has written one."""
    return next(iter(sorted((config / "projects").glob(f"*/{session}.jsonl"))), None)


def read_totals(transcript: Path) -> tuple[float, Mapping[str, Any]]:
    """The session's cost in USD, and the usage of each model, as the program wrote them when it last ended normally."""
    totals: tuple[float, Mapping[str, Any]] = (0.0, {})
    with transcript.open(errors="replace") as lines:
        for line in lines:
            if '"cost-state"' in line:
                totals = _totals(line) or totals
    return totals


def _totals(line: str) -> tuple[float, Mapping[str, Any]] | None:
    try:
        entry = json.loads(line)
        if entry["type"] == "cost-state":
            return float(entry["totalCostUSD"]), dict(entry.get("modelUsage") or {})
    except (ValueError, TypeError, KeyError):
        pass
    return None


async def wait_until_written(transcript: Path, entry: str | None, timeout: float = WRITE_SECONDS) -> None:
    """Wait until this entry is in the file, or `timeout` seconds; the program writes it with a short delay."""
    if entry is None:
        return
    for _ in range(int(timeout / _POLL_SECONDS)):
        if entry.encode() in _read_tail(transcript):
            return
        await asyncio.sleep(_POLL_SECONDS)


def _read_tail(transcript: Path) -> bytes:
    try:
        with transcript.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _SEARCHED_TAIL_BYTES))
            return file.read()
    except OSError:
        return b""
