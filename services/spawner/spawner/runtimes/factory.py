"""Opens the process runtime: detects once what this host supports, and logs the result."""

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
from spawner.runtimes import bubblewrap, cgroups, network, network_probe, user_namespace
from spawner.runtimes import isolation_gaps as gaps
from spawner.runtimes.contract import NOT_ENFORCED, Capabilities, Isolation, RuntimeFailedError, RuntimeFault
from spawner.runtimes.disk_sizes import megabytes_for
from spawner.runtimes.isolation import IsolationLaunch, SandboxNeeds, detect_isolation, refusal
from spawner.runtimes.layout import Layout, SandboxDirectory
from spawner.runtimes.plugin_packages import plugin_packages, search_path
from spawner.runtimes.process import ProcessRuntime
from spawner.runtimes.sandbox_users import SandboxUsers, refuses_owners

WORKER: Final = (sys.executable, "-P", "-m", "sandherd_worker.main")
"""The command line of a worker. With `-P`, files of the work tree do not shadow the worker's modules."""
_PACKAGES: Final = ("sandherd", "sandherd_worker", "sandherd_drivers")
FIRST_UID, UIDS = 1_879_048_192, 65_536  # the default of the first host uid for sandboxes, and of the number of uids
_COMPILE_SECONDS, _UINT32 = 60.0, 0xFFFFFFFF
_log: Final = logs.get("runtime.process")


@dataclass(frozen=True)
class ProcessRuntimeOptions:
    """Options of the process runtime. `hidden`: paths that no sandbox may see, even below a visible directory."""

    root: Path
    quarantine: Path
    hidden: tuple[Path, ...] = ()
    isolation: Literal["auto", "bubblewrap", "weak", "none"] = "auto"
    uids: tuple[int, int] = (FIRST_UID, UIDS)
    """The first host uid for sandboxes, and the number of uids; used if the spawner is root."""
    worker: tuple[str, ...] = WORKER
    packages: tuple[str, ...] = _PACKAGES
    plugins: tuple[str, ...] = ()
    """Packages of harness plugins. They are visible in sandboxes like `packages`, but a trial does not import them."""
    use_groups: bool = True
    toolchains: Path | None = None
    networks: network.Networks = field(default_factory=network.Networks)
    disk_megabytes: int | None = 0
    """The size of a sandbox's file system in MiB; 0: disk usage is not limited; None: the default (`disk_sizes`)."""
    starts: bool = True
    """Whether sandboxes will be started. If not, no trial sandbox is started and nothing is compiled."""

    @classmethod
    def of(cls, settings: Settings, worker: tuple[str, ...] = WORKER, *, starts: bool = True) -> Self:
        """The options from the settings. `starts`: whether sandboxes will be started."""
        home = settings.home.resolve()
        return cls(
            root=home / "sandboxes",
            quarantine=home / "kept",
            hidden=(home,),
            isolation=settings.isolation,
            uids=(settings.sandbox_uid_first, settings.sandbox_uid_count),
            worker=worker,
            plugins=plugin_packages(),
            toolchains=settings.toolchain_dir,
            networks=network.Networks.of(settings),
            disk_megabytes=settings.sandbox_disk_mb,
            starts=starts,
        )


async def open_runtime(options: ProcessRuntimeOptions) -> ProcessRuntime:
    """Open the runtime. Raises `RuntimeFailedError` if this host does not support the required `isolation`."""
    make_directory(options.root)
    no_groups = cgroups.ControlGroups(None, None, 1)
    groups = cgroups.open_groups(_group_name(options.root)) if options.use_groups else no_groups
    result, _ = await asyncio.gather(asyncio.to_thread(_isolation, options), asyncio.to_thread(_compile, options))
    layout = await asyncio.to_thread(_layout, options)
    runtime = ProcessRuntime(
        layout=layout,
        worker=options.worker,
        launch=result.launch,
        groups=groups,
        capabilities=Capabilities(
            isolation=Isolation.BUBBLEWRAP if result.launch else Isolation.NONE,
            memory="cgroup" if groups.memory else "rlimit",
            processes=_process_limit(result.launch, groups),
            cores="cgroup" if groups.cpu else NOT_ENFORCED,
            disk="file system" if layout.disk_megabytes else NOT_ENFORCED,
            can_pause=True,
            ports=True,
            can_prepare=True,
            mounts_repository=True,
            gaps=result.gaps,
            network=options.networks.mode if result.launch else "host",
            host_uid=gaps.host_uid(result.launch),
        ),
        toolchains=options.toolchains,
        refusal=result.refusal,
        networks=options.networks,
        search_path=search_path(options.plugins, os.environ.get("PYTHONPATH", "")),
    )
    _check_network(runtime, result.network_problem)
    enabled = runtime.capabilities
    isolation, memory, processes = enabled.isolation, enabled.memory, enabled.processes
    _log.info("process runtime enabled", isolation=isolation, memory=memory, processes=processes)
    return runtime


def _check_network(runtime: ProcessRuntime, reason: str | None) -> None:
    """Refuse to start sandboxes if they can't have their own network. Report a gap if they share the host's network."""
    if reason:
        _log.error("sandbox network unavailable, refusing to start sandboxes", reason=reason)
        runtime.refusal = reason
    shared = "host" in runtime.networks.modes or not runtime.launch
    network_gaps = [reason] if reason else [network_probe.SHARED_NETWORK_GAP] if shared else []
    runtime.capabilities = replace(runtime.capabilities, gaps=(*runtime.capabilities.gaps, *network_gaps))


def _layout(options: ProcessRuntimeOptions) -> Layout:
    """The layout of this runtime. Mounts existing sandboxes' file systems, and tests whether new ones are possible."""
    layout = Layout(options.root, options.quarantine, megabytes_for(options.disk_megabytes, options.root))
    if layout.disk_megabytes and (reason := layout.disks.try_out()):
        _log.warning("sandbox disk usage is not limited", reason=reason)
        layout = Layout(options.root, options.quarantine)
    layout.disks.reattach(layout.folders)
    return layout


@dataclass(frozen=True)
class _IsolationResult:
    """How the sandboxes of a runtime are isolated. `refusal`: why no sandbox may be started."""

    launch: IsolationLaunch | None = None
    gaps: tuple[str, ...] = ()
    refusal: str | None = None
    network_problem: str | None = None
    """Why sandboxes can't have their own network; None if they can."""


def _isolation(options: ProcessRuntimeOptions) -> _IsolationResult:
    if options.isolation == "none":
        _log.warning("sandboxes are not isolated from the host: SANDHERD_ISOLATION=none")
        return _IsolationResult()
    users, unused_reason = _sandbox_users(options)
    result = _start_trial(options, users)
    if users and users.subordinate_names and (reason := result.refusal or result.network_problem):
        result, users, unused_reason = _retry_trials(options, users, reason)
    if result.launch:
        return replace(result, gaps=gaps.remaining_gaps(result.launch, unused_reason))
    reason = _isolation_problem(result.refusal)
    if options.isolation == "bubblewrap":
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"SANDHERD_ISOLATION=bubblewrap, but {reason}")
    if options.isolation == "auto":
        _log.error("sandbox isolation unavailable, refusing to start sandboxes", reason=result.refusal)
        return _IsolationResult(refusal=reason, gaps=(reason,))
    weak = _start_trial(options, None) if users else _IsolationResult()
    weak_gaps = gaps.remaining_gaps(weak.launch, unused_reason) if weak.launch else (gaps.NO_ISOLATION,)
    return replace(weak, refusal=None, gaps=(f"SANDHERD_ISOLATION=weak: {result.refusal}", *weak_gaps))


def _sandbox_users(options: ProcessRuntimeOptions) -> tuple[SandboxUsers | None, str]:
    """The host uids for sandboxes, if any, and why no subordinate uids are used (empty for root, or if they are)."""
    if os.getuid() == 0:
        return SandboxUsers(*options.uids), ""
    subordinate = user_namespace.current()
    if subordinate.users is None or subordinate.joined:
        return subordinate.users, subordinate.reason
    reason = refuses_owners(options.root.parent, subordinate.users)
    return (None, reason) if reason else (subordinate.users, "")


def _retry_trials(
    options: ProcessRuntimeOptions, users: SandboxUsers, reason: str
) -> tuple[_IsolationResult, SandboxUsers | None, str]:
    """Try with and without subordinate uids. Use none if only that works, and no running sandbox has one."""
    with_uids, without_uids = _start_trial(options, users), _start_trial(options, None)
    works = not (with_uids.refusal or with_uids.network_problem)
    if works or user_namespace.current().joined or without_uids.refusal or without_uids.network_problem:
        return with_uids, users, reason
    _log.warning("subordinate uids not used", reason=reason)
    return without_uids, None, reason


def _start_trial(options: ProcessRuntimeOptions, users: SandboxUsers | None) -> _IsolationResult:
    """Start a trial sandbox that does nothing. It has its own network if any sandbox will have one."""
    needs = SandboxNeeds(
        Path(options.worker[0]), options.packages, options.hidden, options.toolchains, users, options.plugins
    )
    launch, reason = detect_isolation(needs)
    if launch is None or not options.starts:
        return _IsolationResult(launch, refusal=reason)
    network_problem = None
    if options.networks.modes - {"host"}:
        network_problem = network_probe.refusal(launch, options.networks, needs.trial)
        if network_problem is None:
            return _IsolationResult(launch)
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        reason = refusal(launch, SandboxDirectory(Path(folder, "sbx-trial")), needs.trial)
    return _IsolationResult(refusal=reason) if reason else _IsolationResult(launch, network_problem=network_problem)


def _isolation_problem(reason: str | None) -> str:
    return (
        f"this host can't isolate sandboxes: {reason}. Allow user namespaces and seccomp, or use another "
        "runtime; SANDHERD_ISOLATION=weak starts them anyway, with a warning each time"
    )


def _process_limit(launch: IsolationLaunch | None, groups: cgroups.ControlGroups) -> str:
    if groups.pids:
        return "cgroup"
    # RLIMIT_NPROC does not apply to the host's root; without a user namespace it counts all processes of the user.
    return "rlimit" if launch and (launch.users or os.getuid() != 0) else "none"


def _group_name(root: Path) -> str:
    """The name of this runtime's groups: unique on the host, and the same after a restart, so that they are found."""
    return f"sandherd-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]}"


def _compile(options: ProcessRuntimeOptions) -> None:
    """Compile the worker's modules. In sandboxes they are read-only, so that each worker would compile them again."""
    folders = [folder for name in (*options.packages, *options.plugins) for folder in bubblewrap.folders_of(name)]
    if not options.starts or (options.worker[0] == sys.executable and all(map(_is_compiled, folders))):
        return
    command = [options.worker[0], "-P", "-m", "compileall", "-q", *map(str, folders)]
    try:
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("worker modules not compiled, sandboxes start more slowly", error=str(error))


def _is_compiled(folder: Path) -> bool:
    """Whether each module has bytecode of this Python and of its current source (PEP 552: magic, 0, time, size)."""
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
