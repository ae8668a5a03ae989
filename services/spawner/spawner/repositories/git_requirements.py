"""Checks that the spawner's machine has what repositories need: git, and a writable folder for mirrors."""

import asyncio
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Final

from sandherd.contracts.requests import GIT, MIRRORS

OLDEST_GIT: Final = (2, 31)
"""The first version that reads its configuration from the environment: older ones would ignore what disables hooks."""
_SECONDS: Final = 10.0


def git_problem() -> str | None:
    """Why git can't be used here, or None. Checked each time, so that git can be installed while the spawner runs."""
    program = shutil.which("git")
    if program is None:
        return "git is not installed on the spawner's machine"
    found = _version(program, Path(program).stat().st_mtime_ns)
    if found is None:
        return f"{program} on the spawner's machine does not run"
    if found < OLDEST_GIT:
        oldest, version = (".".join(map(str, one)) for one in (OLDEST_GIT, found))
        return f"git {version} on the spawner's machine is too old: {oldest} or later is needed"
    return None


async def problems(folder: Path) -> dict[str, str | None]:
    """The problem of each requirement by name, or None if it is met. `folder` is the folder of the mirrors."""
    return {GIT: await asyncio.to_thread(git_problem), MIRRORS: await asyncio.to_thread(_folder_problem, folder)}


@lru_cache(maxsize=4)
def _version(program: str, _changed: int) -> tuple[int, ...] | None:
    """The version of this program; None if it states none. It is read again when the file has changed."""
    try:
        shown = subprocess.run(
            [program, "version"], capture_output=True, text=True, check=True, timeout=_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    match = re.match(r"git version (\d+)\.(\d+)", shown)
    return (int(match[1]), int(match[2])) if match else None


def _folder_problem(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        return f"{folder} can't be written: {error.strerror}"
    return None
