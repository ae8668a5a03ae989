"""Control groups for sandboxes, version 1 or 2, if this process may create them.

A group limits the memory and the number of processes of a whole sandbox, lists every process of it, even if the
process tries to hide, and counts the processes that the kernel killed because the sandbox was out of memory.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from spawner.runtimes.kernel_limits import GroupLimits

_ROOT: Final = Path("/sys/fs/cgroup")
_PERIOD: Final = 100_000
"""The kernel's default accounting period of CPU time, in microseconds."""


@dataclass(frozen=True)
class ControlGroups:
    """The control groups of a runtime: the parent directory of each controller's groups; None if it is unavailable."""

    memory: Path | None
    pids: Path | None
    version: int
    freezer: Path | None = None
    cpu: Path | None = None

    def parents(self) -> list[Path]:
        """The directories in which sandboxes' groups are created."""
        return list(dict.fromkeys(parent for parent in (self.memory, self.pids, self.freezer, self.cpu) if parent))

    def directories(self, sandbox: str) -> list[Path]:
        """The directories of one sandbox's groups."""
        return [parent / sandbox for parent in self.parents()]

    def make(self, sandbox: str, limits: GroupLimits) -> list[Path]:
        """Create a sandbox's groups with these limits. If the groups exist, the limits are set again."""
        for folder in self.directories(sandbox):
            folder.mkdir(parents=True, exist_ok=True)
        if self.memory:
            self._limit_memory(self.memory / sandbox, limits.memory_bytes)
        if self.pids:
            (self.pids / sandbox / "pids.max").write_text(str(limits.processes))
        if self.cpu:
            self._limit_cores(self.cpu / sandbox, limits.cores)
        return self.directories(sandbox)

    def members(self, sandbox: str) -> set[int]:
        """Every process in a sandbox's groups."""
        return {pid for folder in self.directories(sandbox) for pid in _members(folder)}

    def sandboxes(self) -> set[str]:
        """Every sandbox that has a group."""
        parents = [parent for parent in self.parents() if parent.is_dir()]
        return {entry.name for parent in parents for entry in parent.iterdir() if entry.is_dir()}

    def set_frozen(self, sandbox: str, frozen: bool) -> None:  # noqa: FBT001  # the state to set
        """Request the kernel to freeze or thaw every process of a sandbox. This completes asynchronously."""
        if self.freezer is None:
            return
        if self.version == 2:
            (self.freezer / sandbox / "cgroup.freeze").write_text("1" if frozen else "0")
        else:
            (self.freezer / sandbox / "freezer.state").write_text("FROZEN" if frozen else "THAWED")

    def is_frozen(self, sandbox: str) -> bool:
        """Whether all processes of a sandbox are frozen."""
        if self.freezer is None:
            return False
        with suppress(OSError):
            if self.version == 2:
                return "frozen 1" in (self.freezer / sandbox / "cgroup.events").read_text().splitlines()
            return (self.freezer / sandbox / "freezer.state").read_text().strip() == "FROZEN"
        return False

    def is_freeze_requested(self, sandbox: str) -> bool | None:
        """Whether the last request to the kernel was to freeze, not to thaw; None if the sandbox has no such group."""
        if self.freezer is None:
            return None
        with suppress(OSError):
            if self.version == 2:
                return (self.freezer / sandbox / "cgroup.freeze").read_text().strip() == "1"
            return (self.freezer / sandbox / "freezer.self_freezing").read_text().strip() == "1"
        return None

    def oom_kills(self, sandbox: str) -> int:
        """How many processes of a sandbox the kernel has killed because the sandbox was out of memory."""
        if not self.memory:
            return 0
        with suppress(OSError):
            file = "memory.events" if self.version == 2 else "memory.oom_control"
            for line in (self.memory / sandbox / file).read_text().splitlines():
                name, _, count = line.partition(" ")
                if name == "oom_kill":
                    return int(count)
        return 0

    def remove(self, sandbox: str) -> bool:
        """Remove a sandbox's groups. False if some are left, because the kernel still ends processes of the sandbox."""
        for folder in self.directories(sandbox):
            with suppress(OSError):
                folder.rmdir()
        return not any(folder.exists() for folder in self.directories(sandbox))

    def close(self) -> None:
        """Remove each parent directory in which no sandbox has a group."""
        for folder in self.parents():
            with suppress(OSError):
                folder.rmdir()

    def _limit_memory(self, folder: Path, limit: int) -> None:
        if self.version == 2:
            (folder / "memory.max").write_text(str(limit))
            with suppress(OSError):  # no swap accounting in this kernel
                (folder / "memory.swap.max").write_text("0")
            return
        # The limit with swap may not be below the limit without it. Raising and lowering the limits need opposite
        # orders of writing; writing both twice works in both cases.
        for _ in range(2):
            for file in ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"):
                with suppress(OSError):
                    (folder / file).write_text(str(limit))
        # TCP buffers have a separate limit in version 1, and are not counted at all without it.
        with suppress(OSError):
            (folder / "memory.kmem.tcp.limit_in_bytes").write_text(str(limit))

    def _limit_cores(self, folder: Path, cores: float | None) -> None:
        """Set the CPU time per period; None: no limit (kernel, Documentation/scheduler)."""
        quota = None if cores is None else round(cores * _PERIOD)
        if self.version == 2:
            (folder / "cpu.max").write_text(f"{quota or 'max'} {_PERIOD}")
        else:
            (folder / "cpu.cfs_quota_us").write_text(str(quota or -1))


def open_groups(name: str, root: Path = _ROOT, own_groups: str | None = None) -> ControlGroups:
    """Create the parent groups of a runtime, for each controller for which this process may do so.

    `name` identifies the runtime on a host. `own_groups`: the content of `/proc/self/cgroup`; None: the file is read.
    """
    text = Path("/proc/self/cgroup").read_text() if own_groups is None else own_groups
    paths = dict(_own_groups(text))
    if "" in paths and (root / "cgroup.controllers").is_file():
        return _version_2(root / paths[""].lstrip("/"), name)
    return ControlGroups(
        memory=_version_1(root / "memory", paths.get("memory"), name, "memory.limit_in_bytes"),
        pids=_version_1(root / "pids", paths.get("pids"), name, "pids.max"),
        version=1,
        freezer=_version_1(root / "freezer", paths.get("freezer"), name, "cgroup.procs"),
        cpu=_version_1(root / "cpu", paths.get("cpu"), name, "cpu.cfs_quota_us"),
    )


def _own_groups(text: str) -> Iterable[tuple[str, str]]:
    """`(controller, path)` of each line of `/proc/self/cgroup` (cgroups(7)); the controller of version 2 is empty."""
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _version_1(mount: Path, own_group: str | None, name: str, limit_file: str) -> Path | None:
    """Create the parent group of one controller below our own group; None if its `limit_file` is not writable."""
    if own_group is None:
        return None
    folder = mount / own_group.lstrip("/") / name
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder / limit_file, os.W_OK) else None


def _version_2(own_group: Path, name: str) -> ControlGroups:
    """Create the parent group below our own group, or else beside it.

    In version 2 a group that has processes can't have children with limits.
    """
    for parent in (own_group, own_group.parent):
        folder = parent / name
        try:
            folder.mkdir(exist_ok=True)
            (folder / "cgroup.subtree_control").write_text("+memory +pids")
        except OSError:
            with suppress(OSError):
                folder.rmdir()
            continue
        return ControlGroups(memory=folder, pids=folder, version=2, freezer=folder, cpu=_with_cores(folder))
    return ControlGroups(memory=None, pids=None, version=2)


def _with_cores(folder: Path) -> Path | None:
    """`folder` if the cpu controller can be enabled in it, else None: the controller was not delegated to us."""
    try:
        (folder / "cgroup.subtree_control").write_text("+cpu")
    except OSError:
        return None
    return folder


def _members(folder: Path) -> list[int]:
    try:
        return [int(pid) for pid in (folder / "cgroup.procs").read_text().split()]
    except OSError:
        return []
