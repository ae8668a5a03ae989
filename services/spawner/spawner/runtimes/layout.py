"""The files of a sandbox of the process runtime on the host, in a directory with the sandbox's name.

- `work`: the agent's work tree
- `state`: the worker's files: joiner.creds, task.json, spool
- `home`: HOME in the sandbox
- `previous`: the results of the previous attempt, which the worker unpacks
- `run/<n>`: the runtime's files about a run of the worker, numbered from 0; not visible in the sandbox
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.contracts.names import SAFE_NAME_PATTERN, UnsafeNameError, safe_name
from sandherd.private_files import make_directory
from spawner.runtimes.directory_removal import grant_owner_permissions, remove_entry
from spawner.runtimes.run_files import RunFiles
from spawner.runtimes.sized_disks import SizedDisks

_OWNER_ONLY: Final = 0o700
_SECRET_MODE: Final = 0o600
_WORKER_SECRETS: Final = ("worker.nk", "worker.new", "joiner.creds.new", "nats-key.pem")
"""The files with the worker's key, an incomplete key, an incomplete credential, and the key for TLS."""
_NAME: Final = re.compile(SAFE_NAME_PATTERN + r"(?!\n)")


@dataclass(frozen=True)
class SandboxDirectory:
    """The directories of one sandbox."""

    folder: Path

    @property
    def name(self) -> str:
        """The sandbox's name."""
        return self.folder.name

    @property
    def work(self) -> Path:
        """The agent's work tree."""
        return self.folder / "work"

    @property
    def state(self) -> Path:
        """The worker's state."""
        return self.folder / "state"

    @property
    def home(self) -> Path:
        """`HOME` in the sandbox."""
        return self.folder / "home"

    @property
    def joiner(self) -> Path:
        """The sandbox's credentials file."""
        return self.state / "joiner.creds"

    @property
    def task(self) -> Path:
        """The file with the task."""
        return self.state / "task.json"

    @property
    def previous(self) -> Path:
        """The folder with the results of the previous attempt."""
        return self.folder / "previous"

    @property
    def previous_file(self) -> Path:
        """The file that describes the previous attempt."""
        return self.state / "previous.json"

    @property
    def start_pipe(self) -> Path:
        """The pipe on which a warm worker waits for its start signal."""
        return self.state / "begin"

    @property
    def environment(self) -> Path:
        """The environment variables that a warm worker gets with its start signal."""
        return self.state / "environment.json"

    @property
    def warm(self) -> Path:
        """The file that exists while a warm worker waits for its identity."""
        return self.folder / "run" / "warm"

    @property
    def label(self) -> Path:
        """The file with the sandbox's project, which is needed if the sandbox has no record any more."""
        return self.folder / "run" / "project"

    @property
    def user(self) -> int | None:
        """The host uid of the sandbox's processes and directories; None: that of the spawner."""
        try:
            return int((self.folder / "run" / "uid").read_text())
        except (OSError, ValueError):
            return None

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The directories that the sandbox may write to."""
        return (self.work, self.state, self.home, self.previous)

    def record_user(self, uid: int) -> None:
        """Store the host uid of the sandbox's processes."""
        (self.folder / "run" / "uid").write_text(str(uid))

    def set_owner(self, descriptor: int) -> None:
        """Change the owner of an open file to the sandbox's uid, if it has one."""
        if (uid := self.user) is not None:
            os.fchown(descriptor, uid, uid)

    @property
    def resolv_conf(self) -> Path:
        """The sandbox's `/etc/resolv.conf`, if the sandbox has its own network."""
        return self.folder / "run" / "resolv.conf"

    def exists(self) -> bool:
        """Whether the sandbox's directory exists."""
        return self.folder.is_dir()

    def make(self) -> None:
        """Create the directories that do not exist."""
        for folder in (self.folder, self.work, self.state, self.home, self.previous, self.folder / "run"):
            make_directory(folder, _OWNER_ONLY)

    def read_label(self) -> str | None:
        """The sandbox's project; None if the label is missing or invalid."""
        try:
            return safe_name(self.label.read_text())
        except (OSError, UnsafeNameError):
            return None

    def write_secret(self, path: Path, text: str) -> None:
        """Write a file that only its owner may read, atomically."""
        part = self.folder / "run" / f"{path.name}.{secrets.token_hex(8)}"
        if part.parent.stat().st_dev != path.parent.stat().st_dev:
            part = path.with_name(f".{part.name}")  # a file can't be renamed into the sandbox's own file system
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET_MODE)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), _SECRET_MODE)
            file.write(text)
            self.set_owner(descriptor)
        if path.is_dir() and not path.is_symlink():
            remove_entry(path)  # an agent has created it in place of the file
        part.replace(path)

    def delete_secrets(self) -> None:
        """Delete the sandbox's credentials and its task, which contains secrets. A recovery gets new ones."""
        if self.state.is_symlink() or not self.state.is_dir():
            return
        grant_owner_permissions(self.state)  # the agent may have removed the permissions
        names = (self.joiner.name, self.task.name)
        run = self.folder / "run"
        partial = [part for name in names for part in (*run.glob(f"{name}.*"), *self.state.glob(f".{name}.*"))]
        for path in (self.joiner, self.task, *(self.state / name for name in _WORKER_SECRETS), *partial):
            remove_entry(path)

    def runs(self) -> list[RunFiles]:
        """The runs, the oldest first."""
        folder = self.folder / "run"
        if not folder.is_dir():
            return []
        numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
        return [RunFiles(folder / str(number)) for number in numbers]

    def was_claimed(self) -> bool:
        """Whether a worker was ever started in the sandbox."""
        return any(run.claim.exists() for run in self.runs())

    def new_run(self) -> RunFiles:
        """The next run, with its directory. If no worker was started in the last run, it is that run."""
        runs = self.runs()
        if runs and not runs[-1].claim.exists():
            return runs[-1]
        return self._run(len(runs))

    def first_run(self) -> RunFiles:
        """The first run, with its directory, whether a worker was started in it or not."""
        return self._run(0)

    def _run(self, number: int) -> RunFiles:
        run = RunFiles(self.folder / "run" / str(number))
        make_directory(run.folder, _OWNER_ONLY)
        return run


@dataclass(frozen=True)
class Layout:
    """All sandboxes of one process runtime."""

    root: Path
    quarantine_root: Path
    disk_megabytes: int = 0
    """The size of a new sandbox's file system in MiB; 0: it has no file system of its own."""

    @property
    def disks(self) -> SizedDisks:
        """The file systems of these sandboxes."""
        return SizedDisks(self.root.with_name(f"{self.root.name}-disks"), self.disk_megabytes)

    def folders(self) -> list[Path]:
        """The directories of all sandboxes, including those in quarantine."""
        quarantined = (self.quarantine_root / name for name in self.list_quarantined())
        return [*quarantined, *(directory.folder for directory in self.directories())]

    def directory(self, sandbox: str) -> SandboxDirectory:
        """The directories of a sandbox. Raises `UnsafeNameError` for a name that could refer to another path."""
        return SandboxDirectory(self.root / safe_name(sandbox, "sandbox"))

    def directories(self) -> list[SandboxDirectory]:
        """Every sandbox that has a directory."""
        return [SandboxDirectory(self.root / name) for name in _sandbox_names(self.root)]

    def remove(self, sandbox: str) -> None:
        """Remove a sandbox's directory. Links in it are removed, not followed."""
        directory = self.directory(sandbox)
        self.disks.remove(directory.folder)
        remove_entry(directory.folder)

    def quarantine(self, sandbox: str) -> Path:
        """Move a sandbox's directory to quarantine, without its secrets, and return the new path."""
        self.directory(sandbox).delete_secrets()
        make_directory(self.quarantine_root, _OWNER_ONLY)
        quarantined = self.quarantine_root / safe_name(sandbox, "sandbox")
        if not self.disks.move(folder := self.directory(sandbox).folder, quarantined):
            folder.rename(quarantined)
        return quarantined

    def list_quarantined(self) -> list[str]:
        """The sandboxes in quarantine."""
        return _sandbox_names(self.quarantine_root)

    def unquarantine(self, sandbox: str) -> None:
        """Move a sandbox's directory out of quarantine, if it is there."""
        quarantined = self.quarantine_root / safe_name(sandbox, "sandbox")
        folder = self.directory(sandbox).folder
        if quarantined.is_dir() and not self.disks.move(quarantined, folder):
            quarantined.rename(folder)


def _sandbox_names(folder: Path) -> list[str]:
    entries = folder.iterdir() if folder.is_dir() else ()
    return [entry.name for entry in entries if entry.is_dir() and _NAME.fullmatch(entry.name)]
