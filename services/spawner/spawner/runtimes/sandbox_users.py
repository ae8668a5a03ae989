"""The host uids of sandboxes. Each sandbox has its own unprivileged uid.

The uids are from a range reserved for sandboxes if the spawner is root, else from its user's subordinate ids.

A reservation is a file named after the uid, in a directory shared by all spawners that use the range. It contains the
path of the sandbox's directory, and is deleted with the sandbox. The sandbox's directory in turn records the uid. After
a reboot, which deletes reservations, a sandbox gets its recorded uid again unless another sandbox has reserved it.
"""

import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandherd.private_files import make_directory
from spawner.runtimes.layout import SandboxDirectory

RESERVATIONS: Final = Path("/run/sandherd/uids")
_OWNER_ONLY: Final = 0o700
_TRAVERSABLE: Final = 0o711
"""The mode of a directory that sandboxes' uids must be able to traverse to their staged files."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_TRIES: Final = 4096
"""How many random uids are tried before the range counts as used up."""
_ID_FIELD: Final = 2
"""The index of the numeric id among the fields of a line in `/etc/passwd` and `/etc/group`."""
_FOREIGN_OWNER_ERRORS: Final = frozenset({errno.EPERM, errno.EACCES, errno.EINVAL, errno.EOPNOTSUPP, errno.EOVERFLOW})
"""Errors of file systems that do not allow changing a file's owner to a uid."""
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class NoUserError(Exception):
    """No host uid is available for a sandbox. The message contains the remedy."""


@dataclass(frozen=True)
class SandboxUsers:
    """The range of host uids for sandboxes. Each uid is also used as a gid."""

    first: int
    count: int
    folder: Path = RESERVATIONS
    subordinate_names: tuple[str, ...] = ()
    """The names in `/etc/subuid` of the user who owns the subordinate ids; empty: the spawner is root."""

    @property
    def ids(self) -> range:
        """All uids of the range."""
        return range(self.first, self.first + self.count)

    def claim(self, directory: SandboxDirectory) -> int:
        """Reserve and record a uid for this sandbox: the recorded one if it is still available, else a new one.

        Raises `NoUserError`, `OSError`.
        """
        with self._lock():
            recorded = directory.user
            if recorded is not None and recorded in self.ids and self._reserve(recorded, directory.folder):
                return recorded
            for _ in range(_MAX_TRIES):
                uid = self.first + secrets.randbelow(self.count)
                if self._reserve(uid, directory.folder):
                    directory.record_user(uid)  # before unlocking, because a reservation without a record is stale
                    return uid
        larger_range = "give the user a larger range in /etc/subuid and /etc/subgid"
        remedy = larger_range if self.subordinate_names else "raise SANDHERD_SANDBOX_UID_COUNT"
        raise NoUserError(f"no host uid is free in {self.first}–{self.ids[-1]}: {remedy}")

    def release(self, directory: SandboxDirectory) -> None:
        """Delete this sandbox's reservation, if it has one. Its processes must have ended."""
        uid = directory.user
        if uid is None:
            return
        with self._lock():
            if self._holder(uid) == str(directory.folder):
                (self.folder / str(uid)).unlink(missing_ok=True)

    def remove_stale(self) -> list[int]:
        """Delete the reservations of sandboxes that no longer exist, for example after the spawner's home was deleted.

        Returns the uids. A reservation whose uid still has a process remains. Raises `NoUserError`, `OSError`.
        """
        with self._lock():
            reserved = (int(entry.name) for entry in os.scandir(self.folder) if entry.name.isdecimal())
            stale = [uid for uid in reserved if not _has_recorded(Path(self._holder(uid) or ""), uid)]
            running = _uids_in_use() if stale else set()
            removed = [uid for uid in stale if uid not in running]
            for uid in removed:
                (self.folder / str(uid)).unlink()
        return removed

    def _reserve(self, uid: int, folder: Path) -> bool:
        """Reserve a uid for the sandbox with this directory. False if another sandbox or its processes have the uid."""
        holder = self._holder(uid)
        if holder == str(folder):
            return True
        if holder is not None and (_has_recorded(Path(holder), uid) or uid in _uids_in_use()):
            return False
        part = self.folder / f".{uid}"
        part.write_text(str(folder))
        part.replace(self.folder / str(uid))
        return True

    def _holder(self, uid: int) -> str | None:
        """The path of the directory of the sandbox that has reserved this uid, if any."""
        try:
            return (self.folder / str(uid)).read_text()
        except FileNotFoundError:
            return None

    @contextmanager
    def _lock(self) -> Iterator[None]:
        """Lock the reservations against other spawners on this host."""
        make_directory(self.folder.parent, _TRAVERSABLE)
        make_directory(self.folder, _OWNER_ONLY)
        lock = os.open(self.folder, _FOLDER)
        try:
            status = os.fstat(lock)
            if status.st_uid != os.getuid() or status.st_mode & _WRITABLE_BY_OTHERS:
                raise NoUserError(f"{self.folder} is writable by others: remove it, and restart the spawner")
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def _has_recorded(folder: Path, uid: int) -> bool:
    """Whether the sandbox in this directory exists and has recorded this uid."""
    return SandboxDirectory(folder).user == uid


def _uids_in_use() -> set[int]:
    """The uids of this host's processes. A sandbox whose directory was deleted externally may still have processes."""
    uids: set[int] = set()
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            with suppress(OSError):  # the process has just ended
                uids.add(entry.stat().st_uid)
    return uids


def collision(users: SandboxUsers, etc: Path = Path("/etc"), proc: Path = Path("/proc")) -> str | None:
    """Why this range of uids can't be used on this host, with a remedy; None if it can be used."""
    problems = [
        *(f"some of {users.first}–{users.ids[-1]} do not exist here ({path})" for path in _unmapped(users, proc)),
        *(f"{name} in {path} has id {uid}" for path, name, uid in _accounts(etc) if uid in users.ids),
        *(
            f"{name} in {path} has some of them"
            for path, name, delegated in _delegated_ranges(etc, users)
            if _overlap(delegated, users)
        ),
    ]
    remedy = "set SANDHERD_SANDBOX_UID_FIRST and SANDHERD_SANDBOX_UID_COUNT to ids that nothing else uses"
    if users.subordinate_names:
        remedy = f"give {users.subordinate_names[0]} ids in /etc/subuid and /etc/subgid that nothing else uses"
    return f"host ids for sandboxes: {problems[0]}; {remedy}" if problems else None


def refuses_owners(folder: Path, users: SandboxUsers) -> str | None:
    """Why these uids can't own files in this directory, as on some network file systems; None if they can.

    A temporary problem, such as a full disk, is ignored.
    """
    try:
        with tempfile.TemporaryDirectory(prefix="trial-", dir=folder) as trial:
            os.chown(trial, users.first, users.first)
            os.chown(trial, os.getuid(), os.getgid())
    except OSError as error:
        return f"they can't own files in {folder}: {error.strerror}" if error.errno in _FOREIGN_OWNER_ERRORS else None
    return None


def _unmapped(users: SandboxUsers, proc: Path) -> list[Path]:
    maps = [proc / "self" / name for name in ("uid_map", "gid_map")]
    return [path for path in maps if not any(_covers(line, users.ids) for line in _lines(path))]


def _accounts(etc: Path) -> Iterator[tuple[Path, str, int]]:
    for path in (etc / "passwd", etc / "group"):
        for line in _lines(path):
            fields = line.split(":")
            if len(fields) > _ID_FIELD and fields[_ID_FIELD].isdecimal():
                yield path, fields[0], int(fields[_ID_FIELD])


def _delegated_ranges(etc: Path, users: SandboxUsers) -> Iterator[tuple[Path, str, range]]:
    """The ranges of ids that are delegated to other users."""
    for path in (etc / "subuid", etc / "subgid"):
        for line in _lines(path):
            name, first, count = (*line.split(":"), "", "")[:3]
            if first.isdecimal() and count.isdecimal() and name not in users.subordinate_names:
                yield path, name, range(int(first), int(first) + int(count))


def _covers(line: str, ids: range) -> bool:
    """Whether a line of a uid map (user_namespaces(7)) contains all of these ids."""
    inside, _, count = (int(field) for field in line.split())
    return inside <= ids[0] and ids[-1] < inside + count


def _overlap(ids: range, users: SandboxUsers) -> bool:
    return ids.start < users.ids.stop and users.ids.start < ids.stop


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def change_owner(folder: Path, uid: int, gid: int | None = None) -> None:
    """Change the owner of a directory tree to a uid, and to `gid`; None: the gid equal to the uid.

    Works at any depth; links are changed, not followed. No process may use the tree. The root directory is changed
    last: if it has another owner, the tree must be changed again. Raises `OSError`.
    """
    gid = uid if gid is None else gid
    current = os.open(folder, _FOLDER)
    pending = [os.listdir(current)]  # noqa: PTH208  # pathlib lists no descriptor
    try:
        while pending:
            if pending[-1]:
                name = pending[-1].pop()
                os.chown(name, uid, gid, dir_fd=current, follow_symlinks=False)
                if not stat.S_ISDIR(os.stat(name, dir_fd=current, follow_symlinks=False).st_mode):
                    continue
                pending.append([])
                current = _open_and_close(name, current)
                pending[-1] = os.listdir(current)  # noqa: PTH208  # as above
            else:
                pending.pop()
                current = _open_and_close("..", current) if pending else current
    finally:
        os.close(current)
    os.chown(folder, uid, gid, follow_symlinks=False)


def _open_and_close(name: str, folder: int) -> int:
    """Open a directory by its name in an open directory, and close that one, so that only one is open at a time."""
    descriptor = os.open(name, _FOLDER, dir_fd=folder)
    os.close(folder)
    return descriptor
