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
"""The first version that reads configuration from the environment. Older ones would ignore what disables hooks."""
_TIMEOUT_SECONDS: Final = 10.0


def git_problem() -> str | None:
    """Why git can't be used here, or None. Checked each time, so that git can be installed while the spawner runs."""
    program = shutil.which("git")
    if program is None:
        return "git is not installed on the spawner's machine"
    version = _version(program, Path(program).stat().st_mtime_ns)
    if version is None:
        return f"{program} on the spawner's machine does not run"
    if version < OLDEST_GIT:
        oldest, installed = (".".join(map(str, one)) for one in (OLDEST_GIT, version))
        return f"git {installed} on the spawner's machine is too old: {oldest} or later is needed"
    return None


async def problems(folder: Path) -> dict[str, str | None]:
    """The problem of each requirement by its name; None for one that is met. `folder` is the folder of the mirrors."""
    return {GIT: await asyncio.to_thread(git_problem), MIRRORS: await asyncio.to_thread(_folder_problem, folder)}


@lru_cache(maxsize=4)
def _version(program: str, _changed: int) -> tuple[int, ...] | None:
    """The version that this program prints, or None. It is cached until its file changes (`_changed`)."""
    try:
        printed = subprocess.run(
            [program, "version"], capture_output=True, text=True, check=True, timeout=_TIMEOUT_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return None
    match = re.match(r"git version (\d+)\.(\d+)", printed)
    return (int(match[1]), int(match[2])) if match else None


def _folder_problem(folder: Path) -> str | None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"0")
    except OSError as error:
        return f"{folder} can't be written: {error.strerror}"
    return None
