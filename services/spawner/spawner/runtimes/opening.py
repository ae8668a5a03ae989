"""Opening the process runtime: what this host allows is found out here, once, and said."""

import asyncio
import hashlib
import os
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path
from typing import Final, Literal, Self

from sandherd.private_files import make_directory
from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes import bubblewrap, cgroups, gaps, network, network_trial, user_namespace
from spawner.runtimes.contract import NOT_HELD, Capabilities, Isolation, RuntimeFailedError, RuntimeFault
from spawner.runtimes.isolation import Walls, Wanted, find_walls, refusal
from spawner.runtimes.layout import Layout, Place
from spawner.runtimes.process import ProcessRuntime
from spawner.runtimes.sandbox_users import SandboxUsers, refuses_owners

WORKER: Final = (sys.executable, "-P", "-m", "sandherd_worker.main")
"""`-P`: the work tree is the current directory, and nothing in it may be imported in place of the worker's modules."""
_PACKAGES: Final = ("sandherd", "sandherd_worker", "sandherd_drivers")
FIRST_UID, UIDS = 1_879_048_192, 65_536
_COMPILE_SECONDS: Final = 60.0
_UINT32: Final = 0xFFFFFFFF
_log: Final = logs.get("runtime.process")


@dataclass(frozen=True)
class Options:
    """How the process runtime is to be set up. `hidden` is what no sandbox may see, whatever it lies under."""

    root: Path
    aside: Path
    hidden: tuple[Path, ...] = ()
    isolation: Literal["auto", "bubblewrap", "weak", "none"] = "auto"
    uids: tuple[int, int] = (FIRST_UID, UIDS)
    """The first host uid for sandboxes, and how many there are; for a spawner that is root."""
    worker: tuple[str, ...] = WORKER
    packages: tuple[str, ...] = _PACKAGES
    use_groups: bool = True
    toolchains: Path | None = None
    networks: network.Networks = field(default_factory=network.Networks)
    disk_megabytes: int = 0
    """The size of a sandbox's file system; 0: its disk is not limited."""
    starts: bool = True
    """Whether sandboxes will be started. If not, no sandbox is started on trial, and nothing is compiled."""

    @classmethod
    def of(cls, settings: Settings, worker: tuple[str, ...] = WORKER, *, starts: bool = True) -> Self:
        """The runtime of a stack's home: the same for whoever starts its sandboxes and for whoever ends them."""
        home = settings.home.resolve()
        return cls(
            root=home / "sandboxes",
            aside=home / "kept",
            hidden=(home,),
            isolation=settings.isolation,
            uids=(settings.sandbox_uid_first, settings.sandbox_uid_count),
            worker=worker,
            toolchains=settings.toolchain_dir,
            networks=network.Networks.of(settings),
            disk_megabytes=settings.sandbox_disk_mb,
            starts=starts,
        )


async def open_runtime(options: Options) -> ProcessRuntime:
    """Find out what this host allows, once. Raises `RuntimeFailedError` where `isolation` asks for what it forbids."""
    make_directory(options.root)
    groups = cgroups.find(_group_name(options.root)) if options.use_groups else cgroups.Groups(None, None, 1)
    isolated, _ = await asyncio.gather(asyncio.to_thread(_isolating, options), asyncio.to_thread(_compile, options))
    walls = isolated.walls
    layout = await asyncio.to_thread(_layout, options)
    runtime = ProcessRuntime(
        layout=layout,
        worker=options.worker,
        walls=walls,
        groups=groups,
        capabilities=Capabilities(
            isolation=Isolation.BUBBLEWRAP if walls else Isolation.NONE,
            memory="cgroup" if groups.memory else "rlimit",
            processes=_process_limit(walls, groups),
            cores="cgroup" if groups.cpu else NOT_HELD,
            disk="file system" if layout.disk_megabytes else NOT_HELD,
            can_pause=True,
            ports=True,
            can_prepare=True,
            gaps=isolated.gaps,
            network=options.networks.mode if walls else "host",
            host_uid=gaps.host_uid(walls),
        ),
        toolchains=options.toolchains,
        refusal=isolated.refusal,
        networks=options.networks,
    )
    _check_network(runtime, isolated.unconnected)
    able = runtime.capabilities
    _log.info("process runtime", isolation=able.isolation, memory=able.memory, processes=able.processes)
    return runtime


def _check_network(runtime: ProcessRuntime, reason: str | None) -> None:
    """Where sandboxes can't have a network of their own, none are started; where they share the host's, say so."""
    if reason:
        _log.error("sandboxes can't have a network of their own, so none are started", reason=reason)
        runtime.refusal = reason
    shared = "host" in runtime.networks.modes or not runtime.walls
    found = [reason] if reason else [network_trial.SHARED] if shared else []
    runtime.capabilities = replace(runtime.capabilities, gaps=(*runtime.capabilities.gaps, *found))


def _layout(options: Options) -> Layout:
    """The sandboxes that there are, with their file systems mounted, and whether new ones can have one."""
    layout = Layout(options.root, options.aside, options.disk_megabytes)
    if options.disk_megabytes:
        reason = layout.disks.try_out() if os.getuid() == 0 else "only root can mount a file system for each"
        if reason:
            _log.warning("the disk of sandboxes is not limited", reason=reason)
            layout = Layout(options.root, options.aside)
    layout.disks.reattach(layout.folders)
    return layout


@dataclass(frozen=True)
class _Isolated:
    """How sandboxes of a runtime are isolated. `refusal`: why none may be started."""

    walls: Walls | None = None
    gaps: tuple[str, ...] = ()
    refusal: str | None = None
    unconnected: str | None = None
    """Why sandboxes can't have a network of their own."""


def _isolating(options: Options) -> _Isolated:
    if options.isolation == "none":
        _log.warning("sandboxes are not isolated from this host: SANDHERD_ISOLATION=none")
        return _Isolated()
    users, unused = _users(options)
    found = _try(options, users)
    if users and users.of_user and (reason := found.refusal or found.unconnected):
        found, users, unused = _without_subordinate(options, users, reason)
    if found.walls:
        return replace(found, gaps=gaps.of(found.walls, unused))
    reason = _no_way(found.refusal)
    if options.isolation == "bubblewrap":
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"SANDHERD_ISOLATION=bubblewrap, but {reason}")
    if options.isolation == "auto":
        _log.error("this host can't isolate sandboxes, so none are started", reason=found.refusal)
        return _Isolated(refusal=reason, gaps=(reason,))
    weak = _try(options, None) if users else _Isolated()
    lacking = gaps.of(weak.walls, unused) if weak.walls else (gaps.NOTHING,)
    return replace(weak, refusal=None, gaps=(f"SANDHERD_ISOLATION=weak: {found.refusal}", *lacking))


def _users(options: Options) -> tuple[SandboxUsers | None, str]:
    """The host uids for sandboxes, or why the spawner's user has none to give."""
    if os.getuid() == 0:
        return SandboxUsers(*options.uids), ""
    found = user_namespace.current()
    if found.users is None or found.joined:
        return found.users, found.reason
    reason = refuses_owners(options.root.parent, found.users)
    return (None, reason) if reason else (found.users, "")


def _without_subordinate(
    options: Options, users: SandboxUsers, reason: str
) -> tuple[_Isolated, SandboxUsers | None, str]:
    """What is found once more, and without them if only that works. A sandbox that has one is not left behind."""
    again, shared = _try(options, users), _try(options, None)
    works = not (again.refusal or again.unconnected)
    if works or user_namespace.current().joined or shared.refusal or shared.unconnected:
        return again, users, reason
    _log.warning("subordinate uids are not used", reason=reason)
    return shared, None, reason


def _try(options: Options, users: SandboxUsers | None) -> _Isolated:
    """Start one sandbox that does nothing: with a network of its own, if any will have one; else without."""
    wanted = Wanted(Path(options.worker[0]), options.packages, options.hidden, options.toolchains, users)
    walls, reason = find_walls(wanted)
    if walls is None or not options.starts:
        return _Isolated(walls, refusal=reason)
    unconnected = None
    if options.networks.modes - {"host"}:
        unconnected = network_trial.refusal(walls, options.networks, wanted.trial)
        if unconnected is None:
            return _Isolated(walls)
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        reason = refusal(walls, Place(Path(folder, "sbx-trial")), wanted.trial)
    return _Isolated(refusal=reason) if reason else _Isolated(walls, unconnected=unconnected)


def _no_way(reason: str | None) -> str:
    return (
        f"this host does not allow sandboxes to be isolated: {reason}. Allow user namespaces and seccomp, or name "
        "another runtime; SANDHERD_ISOLATION=weak starts them all the same, with a warning each time"
    )


def _process_limit(walls: Walls | None, groups: cgroups.Groups) -> str:
    if groups.pids:
        return "cgroup"
    # The kernel exempts the host's root from RLIMIT_NPROC, and without a user namespace it counts all of a user's.
    return "rlimit" if walls and (walls.users or os.getuid() != 0) else "none"


def _group_name(root: Path) -> str:
    """One name for each runtime on a host, the same at every start, so that it finds what it left behind."""
    return f"sandherd-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]}"


def _compile(options: Options) -> None:
    """Compile the worker's modules once: in a sandbox they are read-only, and would be compiled at every start."""
    folders = [folder for name in options.packages for folder in bubblewrap.folders_of(name)]
    if not options.starts or (options.worker[0] == sys.executable and all(map(_is_compiled, folders))):
        return
    command = [options.worker[0], "-P", "-m", "compileall", "-q", *map(str, folders)]
    try:
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("sandboxes start more slowly: their modules can't be compiled here", error=str(error))


def _is_compiled(folder: Path) -> bool:
    """Whether each module has bytecode of this Python and of its present source (PEP 552: magic, 0, time, size)."""
    for source in folder.rglob("*.py"):
        stat = source.stat()
        header = MAGIC_NUMBER + struct.pack("<III", 0, int(stat.st_mtime) & _UINT32, stat.st_size & _UINT32)
        try:
            with Path(cache_from_source(source)).open("rb") as cached:
                if cached.read(len(header)) != header:
                    return False
        except OSError:
            return False
    return True
