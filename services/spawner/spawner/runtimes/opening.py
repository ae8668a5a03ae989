"""Opening the process runtime: what this host allows is found out here, once, and said."""

import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes import bubblewrap, cgroups
from spawner.runtimes.contract import NOT_HELD, Capabilities, Isolation, RuntimeFailedError, RuntimeFault
from spawner.runtimes.layout import Layout, Place
from spawner.runtimes.process import ProcessRuntime

WORKER: Final = (sys.executable, "-P", "-m", "sandherd_worker.main")
"""`-P`: the work tree is the current directory, and nothing in it may be imported in place of the worker's modules."""
_PACKAGES: Final = ("sandherd", "sandherd_worker", "sandherd_drivers")
_COMPILE_SECONDS: Final = 60.0
_log: Final = logs.get("runtime.process")


@dataclass(frozen=True)
class Options:
    """How the process runtime is to be set up. `hidden` is what no sandbox may see, whatever it lies under."""

    root: Path
    aside: Path
    hidden: tuple[Path, ...] = ()
    isolation: Literal["auto", "bubblewrap", "none"] = "auto"
    worker: tuple[str, ...] = WORKER
    packages: tuple[str, ...] = _PACKAGES
    use_groups: bool = True
    toolchains: Path | None = None

    @classmethod
    def of(cls, settings: Settings, worker: tuple[str, ...] = WORKER) -> Self:
        """The runtime of a stack's home: the same for whoever starts its sandboxes and for whoever ends them."""
        home = settings.home.resolve()
        return cls(
            root=home / "sandboxes",
            aside=home / "kept",
            hidden=(home,),
            isolation=settings.isolation,
            worker=worker,
            toolchains=settings.toolchain_dir,
        )


async def open_runtime(options: Options) -> ProcessRuntime:
    """Find out what this host allows, once. Raises `RuntimeFailedError` where `isolation` asks for what it forbids."""
    options.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    groups = cgroups.find(_group_name(options.root)) if options.use_groups else cgroups.Groups(None, None, 1)
    host, _ = await asyncio.gather(asyncio.to_thread(_isolating, options), asyncio.to_thread(_compile, options))
    runtime = ProcessRuntime(
        layout=Layout(options.root, options.aside),
        worker=options.worker,
        host=host,
        groups=groups,
        capabilities=Capabilities(
            isolation=Isolation.BUBBLEWRAP if host else Isolation.NONE,
            memory="cgroup" if groups.memory else "rlimit",
            processes=_process_limit(host, groups),
            cores="cgroup" if groups.cpu else NOT_HELD,
            can_pause=True,
            ports=True,
            can_prepare=True,
        ),
        toolchains=options.toolchains,
    )
    able = runtime.capabilities
    _log.info("process runtime", isolation=able.isolation, memory=able.memory, processes=able.processes)
    return runtime


def _isolating(options: Options) -> bubblewrap.Host | None:
    if options.isolation == "none":
        _log.warning("sandboxes are not isolated from this host: SANDHERD_ISOLATION=none")
        return None
    with tempfile.TemporaryDirectory(prefix="sandherd-") as folder:
        host, reason = bubblewrap.find_host_or_reason(
            Path(options.worker[0]),
            options.packages,
            options.hidden,
            Place(Path(folder, "sbx-trial")),
            options.toolchains,
        )
    if host is None and options.isolation == "bubblewrap":
        raise RuntimeFailedError(
            RuntimeFault.REFUSED,
            f"SANDHERD_ISOLATION=bubblewrap, but this host does not allow it: {reason}. "
            "Allow unprivileged user namespaces, or set SANDHERD_ISOLATION=none to go without",
        )
    if host is None:
        _log.warning("sandboxes are not isolated from this host: bubblewrap can't be used here", reason=reason)
    return host


def _process_limit(host: bubblewrap.Host | None, groups: cgroups.Groups) -> str:
    if groups.pids:
        return "cgroup"
    # The kernel exempts the host's root from RLIMIT_NPROC, and without a user namespace it counts all of a user's.
    return "rlimit" if host and os.getuid() != 0 else "none"


def _group_name(root: Path) -> str:
    """One name for each runtime on a host, the same at every start, so that it finds what it left behind."""
    return f"sandherd-{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:16]}"


def _compile(options: Options) -> None:
    """Compile the worker's modules once: in a sandbox they are read-only, and would be compiled at every start."""
    folders = [folder for name in options.packages for folder in bubblewrap.folders_of(name)]
    command = [options.worker[0], "-P", "-m", "compileall", "-q", *map(str, folders)]
    try:
        subprocess.run(command, capture_output=True, timeout=_COMPILE_SECONDS, check=True, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError) as error:
        _log.info("sandboxes start more slowly: their modules can't be compiled here", error=str(error))
