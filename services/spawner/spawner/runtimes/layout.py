"""Where the process runtime keeps a sandbox on the host, in a directory with its name.

- `work`: the agent's work tree
- `state`: what the worker needs and keeps: joiner.creds, task.json, spool
- `home`: HOME in the sandbox
- `previous`: where its worker lays out what the attempt before has left
- `run/<n>`: what the runtime knows of the n-th run of the worker; never visible inside
"""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.contracts.names import SAFE_NAME_PATTERN, UnsafeNameError, safe_name
from sandherd.private_files import make_directory
from spawner.runtimes.removing import remove_entry, remove_tree
from spawner.runtimes.run_files import Run
from spawner.runtimes.sized_disks import SizedDisks

_OWN: Final = 0o700
_SECRET: Final = 0o600
_WORKERS_KEY: Final = ("worker.nk", "worker.new", "joiner.creds.new")
"""The worker's own key, half of one, and half of a new way in."""
_NAME: Final = re.compile(SAFE_NAME_PATTERN + r"(?!\n)")


@dataclass(frozen=True)
class Place:
    """The directories of one sandbox."""

    folder: Path

    @property
    def name(self) -> str:
        """The sandbox."""
        return self.folder.name

    @property
    def work(self) -> Path:
        """The agent's work tree."""
        return self.folder / "work"

    @property
    def state(self) -> Path:
        """What the worker keeps."""
        return self.folder / "state"

    @property
    def home(self) -> Path:
        """HOME in the sandbox."""
        return self.folder / "home"

    @property
    def joiner(self) -> Path:
        """The sandbox's credentials file."""
        return self.state / "joiner.creds"

    @property
    def task(self) -> Path:
        """What is to be done."""
        return self.state / "task.json"

    @property
    def previous(self) -> Path:
        """Where what the attempt before has left is laid out."""
        return self.folder / "previous"

    @property
    def offer(self) -> Path:
        """What it is offered of the attempt before."""
        return self.state / "previous.json"

    @property
    def begin(self) -> Path:
        """The pipe by which a worker that was started beforehand is told to begin."""
        return self.state / "begin"

    @property
    def environment(self) -> Path:
        """The variables such a worker is given then."""
        return self.state / "environment.json"

    @property
    def warm(self) -> Path:
        """Stands there while the worker waits to be told to begin."""
        return self.folder / "run" / "warm"

    @property
    def label(self) -> Path:
        """The project it belongs to, for when no record says so any more."""
        return self.folder / "run" / "project"

    @property
    def user(self) -> int | None:
        """The host uid of the sandbox's processes, which its directories belong to; None: the spawner's own."""
        try:
            return int((self.folder / "run" / "uid").read_text())
        except (OSError, ValueError):
            return None

    @property
    def own_folders(self) -> tuple[Path, ...]:
        """The directories that the sandbox may write to."""
        return (self.work, self.state, self.home, self.previous)

    def record_user(self, uid: int) -> None:
        """Write down the host uid of the sandbox's processes."""
        (self.folder / "run" / "uid").write_text(str(uid))

    def give(self, descriptor: int) -> None:
        """Give an open file to the sandbox's own uid, where it has one."""
        if (uid := self.user) is not None:
            os.fchown(descriptor, uid, uid)

    @property
    def resolv_conf(self) -> Path:
        """Its `/etc/resolv.conf`, where it has a network of its own."""
        return self.folder / "run" / "resolv.conf"

    def exists(self) -> bool:
        """Whether anything of it is there."""
        return self.folder.is_dir()

    def make(self) -> None:
        """Make the directories; those that are there stay as they are."""
        for folder in (self.folder, self.work, self.state, self.home, self.previous, self.folder / "run"):
            make_directory(folder, _OWN)

    def read_label(self) -> str | None:
        """The project that it was labelled with."""
        try:
            return safe_name(self.label.read_text())
        except (OSError, UnsafeNameError):
            return None

    def write_secret(self, path: Path, text: str) -> None:
        """Put a file that only its owner may read where the sandbox finds it, whole or not at all."""
        part = self.folder / "run" / f"{path.name}.{secrets.token_hex(8)}"
        if part.parent.stat().st_dev != path.parent.stat().st_dev:
            part = path.with_name(f".{part.name}")  # no rename leads into a file system of the sandbox's own
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(file.fileno(), _SECRET)
            file.write(text)
            self.give(descriptor)
        if path.is_dir() and not path.is_symlink():
            remove_entry(path)  # an agent made it in place of the file
        part.replace(path)

    def forget_secrets(self) -> None:
        """Remove what lets its holder in, and the task with its secrets. A recovery is given them anew."""
        if self.state.is_symlink() or not self.state.is_dir():
            return
        self.state.chmod(_OWN)  # the agent may have taken our rights away
        names = (self.joiner.name, self.task.name)
        run = self.folder / "run"
        halves = [part for name in names for part in (*run.glob(f"{name}.*"), *self.state.glob(f".{name}.*"))]
        for path in (self.joiner, self.task, *(self.state / name for name in _WORKERS_KEY), *halves):
            remove_entry(path)

    def runs(self) -> list[Run]:
        """The runs there were, oldest first."""
        folder = self.folder / "run"
        if not folder.is_dir():
            return []
        numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
        return [Run(folder / str(number)) for number in numbers]

    def was_claimed(self) -> bool:
        """Whether a worker was ever started in it."""
        return any(run.claim.exists() for run in self.runs())

    def new_run(self) -> Run:
        """The next run, its directory made. One that nobody has claimed is used again."""
        runs = self.runs()
        if runs and not runs[-1].claim.exists():
            return runs[-1]
        return self._run(len(runs))

    def first_run(self) -> Run:
        """The first run, its directory made, whether somebody has claimed it or not."""
        return self._run(0)

    def _run(self, number: int) -> Run:
        run = Run(self.folder / "run" / str(number))
        make_directory(run.folder, _OWN)
        return run


@dataclass(frozen=True)
class Layout:
    """All sandboxes of one process runtime."""

    root: Path
    aside: Path
    disk_megabytes: int = 0
    """The size of a new sandbox's file system; 0: it has none of its own."""

    @property
    def disks(self) -> SizedDisks:
        """The file systems of these sandboxes."""
        return SizedDisks(self.root.with_name(f"{self.root.name}-disks"), self.disk_megabytes)

    def folders(self) -> list[Path]:
        """Every directory of a sandbox, also of those that were set aside."""
        return [*(self.aside / name for name in self.kept()), *(place.folder for place in self.places())]

    def place(self, sandbox: str) -> Place:
        """Where a sandbox is. Raises `UnsafeNameError` for a name that could lead elsewhere."""
        return Place(self.root / safe_name(sandbox, "sandbox"))

    def places(self) -> list[Place]:
        """Every sandbox that has a directory."""
        if not self.root.is_dir():
            return []
        return [Place(entry) for entry in self.root.iterdir() if entry.is_dir() and _NAME.fullmatch(entry.name)]

    def remove(self, sandbox: str) -> None:
        """Remove a sandbox's directory. Links in it are removed, not followed."""
        place = self.place(sandbox)
        self.disks.remove(place.folder)
        if place.exists():
            remove_tree(place.folder)

    def keep(self, sandbox: str) -> Path:
        """Put a sandbox's directory aside, where no sweep looks, and return where. Its secrets are not kept."""
        self.place(sandbox).forget_secrets()
        make_directory(self.aside, _OWN)
        kept = self.aside / safe_name(sandbox, "sandbox")
        folder = self.place(sandbox).folder
        if not self.disks.move(folder, kept):
            folder.rename(kept)
        return kept

    def kept(self) -> list[str]:
        """The sandboxes whose directories were put aside."""
        if not self.aside.is_dir():
            return []
        return [entry.name for entry in self.aside.iterdir() if entry.is_dir() and _NAME.fullmatch(entry.name)]

    def take_back(self, sandbox: str) -> None:
        """Put a directory back that was put aside, if it is."""
        kept = self.aside / safe_name(sandbox, "sandbox")
        folder = self.place(sandbox).folder
        if kept.is_dir() and not self.disks.move(kept, folder):
            kept.rename(folder)
