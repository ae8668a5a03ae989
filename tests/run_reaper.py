"""Ends what a test run has left: processes, mounts, control groups, uid reservations and temporary files.

`python -I -S run_reaper.py TOKEN FOLDER PID` is started by the process that controls a run (`tests/run_lifetime.py`),
whose id is PID, and lives until that run is over. FOLDER is the run's temporary directory; its unique name, TOKEN, is
the mark of everything that belongs to the run. Commands are single bytes on standard input:

- `s`, stop: end every process of the run except PID, which gets `_GRACE` seconds to finish.
- `e`, end: the run is over; end and remove what is left.

When PID ends without a command, even by SIGKILL, that is an `e`. Prints the names of processes that it ended after `e`.
"""

import fcntl
import hashlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_GRACE = 8.0
_LONGEST = 10.0
"""Seconds within which killed processes must have ended."""
_PAUSE = 0.05
_MEMORY = Path("/dev/shm")
_GROUPS = Path("/sys/fs/cgroup")
_RESERVATIONS = Path("/run/sandherd/uids")


def marked(pid: int, token: str, namespace: str) -> bool:
    """Whether a process belongs to the run.

    It does if its environment, command line or working directory names the run's directory, or if it has its own mount
    namespace in which something is mounted from that directory: an isolated sandbox shows only the latter.
    """
    process = f"/proc/{pid}"
    for name in ("environ", "cmdline"):
        if token in _read(f"{process}/{name}"):
            return True
    if token in _link(f"{process}/cwd"):
        return True
    return _link(f"{process}/ns/mnt") not in {namespace, ""} and _mounts_from(_read(f"{process}/mountinfo"), token)


def _mounts_from(mountinfo: str, token: str) -> bool:
    """Whether something from below the run's directory is mounted elsewhere (proc(5), mountinfo).

    A copy of the host's mounts, as any process with `unshare --mount` has, has the run's directory in the mount point.
    """
    for line in mountinfo.splitlines():
        before, _, options = line.partition(" - ")
        _, _, _, source, target, *_ = before.split(" ")
        if token not in target and token in source + options:
            return True
    return False


def _read(path: str) -> str:
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115  # `Path.readlink` drops the suffix of a deleted one
    except OSError:
        return ""


class Run:
    """One test run: the processes, mounts, groups and files that carry its mark."""

    def __init__(self, token: str, folder: Path, controller: int) -> None:
        self.token, self.folder, self.controller = token, folder, controller
        self.groups: set[Path] = set()
        self._namespace = _link("/proc/self/ns/mnt")

    def processes(self) -> list[int]:
        """The living processes of the run, except its controller and the reaper."""
        known = {self.controller, os.getpid()}
        parents = _parents()
        found = {pid for pid in parents if pid not in known and marked(pid, self.token, self._namespace)}
        while more := {pid for pid, parent in parents.items() if parent in found} - found - known:
            found |= more
        return sorted(found)

    def end_processes(self) -> list[str]:
        """Kill the processes until none is left. Returns the command lines of those that it has killed."""
        ended: dict[int, str] = {}
        deadline = time.monotonic() + _LONGEST
        while (found := self.processes()) and time.monotonic() < deadline:
            for pid in found:
                ended.setdefault(pid, _read(f"/proc/{pid}/cmdline").replace("\0", " ")[:150])
                self._end(pid)
            time.sleep(_PAUSE)  # noqa: TID251  # other processes: their end is not announced
        return list(ended.values())

    def _end(self, pid: int) -> None:
        for group in _groups_of(pid):
            if not _is_ours(group):
                continue
            self.groups.add(group)
            with suppress(OSError):  # a frozen process is not ended before it is thawed
                (group / "freezer.state").write_text("THAWED")
            with suppress(OSError):
                (group / "cgroup.freeze").write_text("0")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """Remove everything of the run that is not a process."""
        for group in self.groups | set(self._groups_left()) | set(_GROUPS.glob(f"cpuacct/{self.token}-*")):
            for folder in (*group.glob("*/"), group):
                with suppress(OSError):  # a process of another user is in it
                    folder.rmdir()
        own = str(self.folder)
        for mount in reversed([mount for mount in self._mounts() if mount != own]):
            _unmount(mount)
        self._remove_reservations()
        for left in (*_MEMORY.glob(f"*{self.token}*"), self.folder):  # before its own file system is unmounted: where
            shutil.rmtree(left, ignore_errors=True)  # another mount namespace has a copy, the memory is free only then
        if own in self._mounts():
            _unmount(own)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _groups_left(self) -> Iterator[Path]:
        """The control groups of process runtimes whose directory is in the run's; their names are hashes of it."""
        parents = [group for group in _groups_of("self") if any(group.glob("sandherd-*"))]
        for place, folders, _ in os.walk(self.folder) if parents else ():
            name = f"sandherd-{hashlib.sha256(place.encode()).hexdigest()[:16]}"
            yield from (group for parent in parents if (group := parent / name).is_dir())
            if place.endswith("/sandboxes"):
                folders.clear()

    def _mounts(self) -> list[str]:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        return [place for line in lines if self.token in (place := line.split(" ")[4])]

    def _remove_reservations(self) -> None:
        try:
            lock = os.open(_RESERVATIONS, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for entry in _RESERVATIONS.iterdir():
                if self.token in _read(str(entry)):
                    entry.unlink(missing_ok=True)
        finally:
            os.close(lock)


def _unmount(place: str) -> None:
    subprocess.run(["umount", "--lazy", place], check=False, capture_output=True)


def _parents() -> dict[int, int]:
    """The parent of each living process."""
    found: dict[int, int] = {}
    for entry in os.scandir("/proc"):
        fields = _read(f"/proc/{entry.name}/stat").rpartition(")")[2].split() if entry.name.isdecimal() else []
        if fields and fields[0] not in {"Z", "X"}:
            found[int(entry.name)] = int(fields[1])
    return found


def _groups_of(pid: int | str) -> Iterator[Path]:
    """The directories of a process's control groups."""
    for line in _read(f"/proc/{pid}/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        for folder in (_GROUPS / names, _GROUPS / "unified") if names else (_GROUPS / "unified", _GROUPS):
            if (group := folder / path.lstrip("/")).is_dir():
                yield group


def _is_ours(group: Path) -> bool:
    """Whether the group is of a sandbox or a container. Others, such as a user's session, are left alone."""
    return group.parent.name == "docker" or group.parent.name.startswith("sandherd-")


def main() -> None:
    """Wait for the end of the run, then end and remove what is left."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    token, folder, controller = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    run = Run(token, folder, controller)
    alive = os.pidfd_open(controller)
    waited: list[int] = [0, alive]
    print("ready", flush=True)
    ready, _, _ = select.select(waited, [], [])
    if alive not in ready and os.read(0, 1) == b"s":
        run.end_processes()
        ready, _, _ = select.select(waited, [], [], _GRACE)
        if not ready:
            with suppress(ProcessLookupError):
                os.kill(controller, signal.SIGKILL)
    left = run.end_processes()
    run.remove()
    with suppress(BrokenPipeError):  # a controller that was killed reads nothing
        print(*left, sep="\n", end="", flush=True)


if __name__ == "__main__":
    main()
