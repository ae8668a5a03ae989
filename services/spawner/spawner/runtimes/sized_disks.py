"""A file system of a fixed size for each sandbox: a sparse ext4 image, mounted at the sandbox's directory.

It limits all that the sandbox can write, in bytes and in inodes, including deleted files that are still open. Only the
host's root user can mount one. Images are stored beside the directory of the sandboxes, so that each entry of that
directory is a sandbox, with or without an image. Functions that are not `async` block.
"""

import asyncio
import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.private_files import make_directory
from sandherd.telemetry import logs
from spawner.runtimes import disk_images, image_mounts
from spawner.runtimes.disk_images import DRAFT, DiskError

_OWNER_ONLY: Final = 0o700
_MIB: Final = 1024 * 1024
_SUFFIX: Final = ".img"
_TEMPLATE: Final = ".template"
_TRIAL: Final = "trial"
_RESERVE: Final = ".held/spare"
"""The directory in a sandbox's file system with the reserve for its recovery."""
_RUN_MOUNT: Final = "run"
_RUNS_SUFFIX: Final = ".run"
"""The suffix of a directory beside an image, which is mounted at `run` in the image's file system."""
_RESERVE_BYTES: Final = 2 * _MIB
_RESERVE_FILES: Final = 16
"""The number of files of the reserve, each of which reserves an inode."""
_FREE_SECONDS: Final = 30.0
"""How long the kernel may take to release the file system of a sandbox whose processes have ended."""
_POLL_SECONDS: Final = 0.01
_log: Final = logs.get("runtime.sized_disks")


@dataclass(frozen=True)
class SizedDisks:
    """The images of one runtime. `megabytes` is the size of a new image; 0: new sandboxes have no image."""

    folder: Path
    megabytes: int

    def image(self, sandbox: str) -> Path:
        """The path of a sandbox's image, whether it exists or not."""
        return self.folder / f"{sandbox}{_SUFFIX}"

    def attach(self, directory: Path) -> None:
        """Mount the sandbox's file system at its directory, which is created first. Raises `OSError`.

        A sandbox that was created without an image gets none.
        """
        if self.megabytes or self.image(directory.name).exists():
            with self._lock(fcntl.LOCK_SH):
                self._attach(directory)

    def _attach(self, directory: Path) -> None:
        if is_attached(directory):
            return
        image = self.image(directory.name)
        new = not image.exists()
        if new and directory.is_dir() and any(directory.iterdir()):  # the sandbox was created without an image
            return
        make_directory(directory)  # first, because an image without a sandbox's directory is removed at the next start
        if new:
            self._copy_template(image)
        self._mount(directory)
        if new:
            _reserve(directory / _RESERVE)

    def is_missing(self, directory: Path) -> bool:
        """Whether the sandbox's file system is not mounted, so that its contents, such as its runs, are not visible."""
        return self.image(directory.name).exists() and not is_attached(directory)

    async def repair(self, directory: Path) -> None:
        """Prepare the file system of a sandbox that has ended for its recovery. Raises `OSError`.

        The reserve is released. A file system that refuses writes, for example because the host's disk was full, is
        mounted again, which replays its journal.
        """
        if os.path.ismount(directory) and await asyncio.to_thread(_refuses_writes, directory):
            await asyncio.to_thread(image_mounts.detach, directory)
            await self._wait_released(directory)
        await asyncio.to_thread(self.attach, directory)
        await asyncio.to_thread(shutil.rmtree, directory / _RESERVE, ignore_errors=True)

    async def _wait_released(self, directory: Path) -> None:
        """Wait until the kernel has released an unmounted file system. Raises `DiskError`."""
        deadline, image = asyncio.get_running_loop().time() + _FREE_SECONDS, self.image(directory.name)
        while await asyncio.to_thread(image_mounts.is_in_use, image):
            if asyncio.get_running_loop().time() > deadline:
                raise DiskError(await asyncio.to_thread(_still_in_use, directory.name, image))
            await asyncio.sleep(_POLL_SECONDS)

    def reattach(self, directories: Callable[[], list[Path]]) -> None:
        """Mount the images that are not mounted, as after a restart of the host; remove images without a sandbox.

        `directories` returns the directories of all sandboxes.
        """
        if not self.folder.is_dir():
            return
        with self._lock(fcntl.LOCK_EX):
            self._reattach({directory.name: directory for directory in directories()})

    def _reattach(self, known: Mapping[str, Path]) -> None:
        for draft in self.folder.glob(f"*{DRAFT}"):
            draft.unlink()  # its writer ended before the image was complete
        for image in self.folder.glob(f"*{_SUFFIX}"):
            if image.stem.startswith(_TEMPLATE) or image.stem == _TRIAL:
                continue
            if image.stem not in known:
                _log.info("removing file system of missing sandbox", sandbox=image.stem)
                shutil.rmtree(self._runs(image.stem), ignore_errors=True)
                image.unlink()
                continue
            self._try_to_mount(known[image.stem])

    def _try_to_mount(self, directory: Path) -> None:
        if is_attached(directory):
            return
        try:
            self._mount(directory)
        except OSError as error:  # for example while the host's disk is full; the next use of the sandbox tries again
            _log.warning("file system of sandbox not mounted", sandbox=directory.name, error=str(error))

    def remove(self, directory: Path) -> bool:
        """Unmount and delete the sandbox's file system. False if it has none. Raises `OSError`."""
        if not os.path.ismount(directory) and not self.image(directory.name).exists():
            return False
        with self._lock(fcntl.LOCK_SH):
            return self._remove(directory)

    def _remove(self, directory: Path) -> bool:
        image_mounts.detach(directory)
        image = self.image(directory.name)
        if not image.exists():
            return False
        shutil.rmtree(self._runs(directory.name), ignore_errors=True)
        image.unlink()
        return True

    def move(self, directory: Path, to: Path) -> bool:
        """Mount the sandbox's file system at another directory with the same name. False if the sandbox has none.

        Raises `OSError`.
        """
        if not self.image(directory.name).exists():
            return False
        with self._lock(fcntl.LOCK_SH):
            make_directory(to)  # first, because an image without a sandbox's directory is removed at the next start
            if is_attached(directory):
                image_mounts.bind(directory, to)
            else:
                self._try_to_mount(to)
            image_mounts.detach(directory)
            directory.rmdir()
        return True

    def try_out(self) -> str | None:
        """Mount and remove a trial file system. Returns why that is impossible on this host; None if it succeeds."""
        if os.getuid() != 0:
            return "only root can mount a file system for each sandbox"
        trial = self.folder / _TRIAL
        try:
            with self._lock(fcntl.LOCK_EX):
                try:
                    self._remove(trial)  # an interrupted trial may have left one
                    self._attach(trial)
                finally:
                    self._remove(trial)
                    with suppress(OSError):
                        trial.rmdir()
        except OSError as error:
            return str(error)
        return None

    @contextmanager
    def _lock(self, kind: int) -> Iterator[None]:
        """Lock this directory against other processes, such as another replica of the spawner.

        The lock is shared for operations on one sandbox, because each sandbox is used by one process at a time.
        """
        make_directory(self.folder)
        descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)

    def _runs(self, sandbox: str) -> Path:
        """The directory of the runtime's files on a sandbox's runs. It is writable when the sandbox's disk is full."""
        return self.folder / f"{sandbox}{_RUNS_SUFFIX}"

    def _mount(self, directory: Path) -> None:
        """Mount the image, and over its directory `run` mount the directory of the runs on the host's file system."""
        if not os.path.ismount(directory):
            image_mounts.mount_image(self.image(directory.name), directory)
            directory.chmod(_OWNER_ONLY)
        make_directory(self._runs(directory.name))
        make_directory(directory / _RUN_MOUNT)
        image_mounts.bind(self._runs(directory.name), directory / _RUN_MOUNT)

    def _copy_template(self, image: Path) -> None:
        """Create an image as a copy of a template of the same size, in a tenth of the time of `mkfs.ext4`."""
        template = self.folder / f"{_TEMPLATE}-{self.megabytes}{_SUFFIX}"
        if not template.exists():
            disk_images.make(template, self.megabytes * _MIB)
        disk_images.copy(template, image)


def is_attached(directory: Path) -> bool:
    """Whether a sandbox's file system is mounted at its directory, with the directory of its runs."""
    return os.path.ismount(directory) and os.path.ismount(directory / _RUN_MOUNT)


def _refuses_writes(directory: Path) -> bool:
    """Whether ext4 refuses writes after an error. It is tested by writing: recent kernels do not set a flag."""
    probe = directory / f".probe-{secrets.token_hex(4)}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        return error.errno in {errno.EROFS, errno.EIO}
    return False


def _still_in_use(sandbox: str, image: Path) -> str:
    users = ", ".join(map(str, image_mounts.processes_with(image))) or "a process with an open file in it"
    return (
        f"the file system of {sandbox} refuses writes and is still in use by: {users}; a process in a mount namespace "
        "of its own has every file system that was mounted when it started; end it, and retry"
    )


def _reserve(folder: Path) -> None:
    """Reserve bytes and inodes in a file system, for a recovery of the sandbox when it is full."""
    make_directory(folder)
    with (folder / "bytes").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, _RESERVE_BYTES)
    for number in range(_RESERVE_FILES):
        (folder / str(number)).touch()
