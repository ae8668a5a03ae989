"""Modes of files of a whole stack started with the widest and the narrowest umask."""

import asyncio
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandherd.stack import down
from tests.e2e.line import SANDHERD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
_PASSING = stat.S_IXOTH
"""Root's home permits the database's own user to pass, but not to list."""
_READABLE = {"postgres/pg_hba.conf", "postgres/pg_ident.conf"}
"""Rules and names, which are not secret: the database's own user reads them."""


@pytest.fixture
def home() -> Iterator[Path]:
    """A home in a directory that others may enter, so that its own modes protect it."""
    outer = Path(tempfile.mkdtemp(prefix="umask-"))
    outer.chmod(0o755)
    yield outer / "deep" / "home"
    asyncio.run(down(outer / "deep" / "home"))
    shutil.rmtree(outer, ignore_errors=True)


def sandherd(home: Path, umask: int, *words: str) -> None:
    """A command, as a shell with this umask runs it."""
    environment = os.environ | {"SANDHERD_HOME": str(home)}
    program = [str(SANDHERD), *words]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, umask=umask, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("umask", [0o000, pytest.param(0o777, marks=pytest.mark.long)], ids=["0o0", "0o777"])
def test_files_of_a_stack_are_closed_under_any_umask(home: Path, umask: int) -> None:
    """Broker, database, services and a sandbox work, and no other user can read or list their files."""
    sandherd(home, umask, "up")
    sandherd(home, umask, "run", "one", "--", "touch", "one")
    sandherd(home, umask, "down")
    check_modes(home)


def check_modes(home: Path) -> None:
    """Check that no other user can read or list a file of this home, or of its parent that `up` has created."""
    # The first two have sandboxes that were not removed yet; the third has mirrors, which sandboxes read.
    closed = {home / "sandboxes", home / "sandboxes-disks", home / "repositories"}
    for path in (home.parent, home, *home.rglob("*")):
        mode = stat.S_IMODE(path.lstat().st_mode)
        if path.is_symlink() or str(path.relative_to(home.parent)).removeprefix("home/") in _READABLE:
            continue
        if closed & {*path.parents}:
            continue
        allowed = _PASSING if path.is_dir() and os.geteuid() == 0 else 0
        assert not mode & 0o077 & ~allowed, f"{path} {mode:o}"
        assert mode & stat.S_IRUSR, f"{path} {mode:o}"
