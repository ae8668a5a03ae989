"""A real Docker Engine for tests: Debian's, on its own socket, with a base image made by debootstrap.

`python -m tests.engines.docker` downloads and makes all of that, as `make test` does beside its first steps.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
import psutil
from aiodocker import Docker, DockerError

from tests.engines.packages import alone, mirror, unpacked
from tests.engines.private_mounts import PRIVATE_MOUNTS
from tests.patience import PATIENCE
from tests.run_lifetime import MARK

IMAGE = "sandherd-test-base:bookworm"
_PACKAGES = ("docker.io", "containerd", "runc")
_IPTABLES = (
    "iptables", "libip4tc2", "libip6tc2", "libxtables12", "libnetfilter-conntrack3", "libnfnetlink0", "libnftnl11",
    "libmnl0",
)  # fmt: skip
_BESIDE = ("docker-registry", "busybox-static")
"""Packages that tests of images need beside an engine."""
_RARELY = {"GOGC": "400"}
"""Makes garbage collection rarer, which otherwise takes much of an engine's time; here it lives for minutes."""
_FAST = ("/dev/shm",)
_INCLUDED = "python3,git,procps"
_SLIM = (
    "var/cache/apt/archives", "var/lib/apt/lists", "usr/share/locale", "usr/share/doc", "usr/share/man",
    "usr/share/info", "usr/share/perl", "usr/lib/*/perl", "usr/lib/*/gconv",
)  # fmt: skip
"""Files that no test needs and every engine would load: 110 of 270 MB; Debian's slim images lack most of them, too."""


class Engine:
    """One `dockerd` with its own containerd; it ends with the block, and so does everything that it ran."""

    def __init__(self) -> None:
        # In memory if possible: an engine waits for the disk at every step.
        # The mark of the test run in its name lets the run's reaper find what is left.
        prefix = f"{os.environ.get(MARK, 'dk')}-"
        self._folder = Path(
            tempfile.mkdtemp(prefix=prefix, dir=next((d for d in _FAST if os.access(d, os.W_OK)), None))
        )
        self.host = f"unix://{self._folder}/sock"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
            asyncio.run(self._load())
        except BaseException:  # raised again: no process outlives a failed start
            self._end()
            raise
        return self

    def start(self) -> None:
        """Start it, or start it again with its data."""
        root = unpacked(*_PACKAGES, *_IPTABLES)
        search = f"{_names(self._folder, root)}:{root}/usr/bin:{root}/usr/sbin:{os.environ['PATH']}"
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [f"{root}/usr/sbin/dockerd", *_options(self._folder), "--host", self.host],
                env={**os.environ, "PATH": search, **_RARELY},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        asyncio.run(self._until_ready())

    @property
    def command(self) -> Path:
        """The path of Debian's `docker`."""
        return unpacked(*_PACKAGES) / "usr" / "bin" / "docker"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def stop(self) -> None:
        """Stop it normally, like a machine that shuts down."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait(30)

    def kill(self) -> None:
        """Kill it, as a crash would; its containers continue."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        number = self._folder / "exec" / "containerd" / "containerd.pid"
        with suppress(FileNotFoundError, psutil.NoSuchProcess):
            _until_ended(psutil.Process(int(number.read_text())))
        # Where no process reaps orphans, the next engine would think that it still runs.
        number.unlink(missing_ok=True)

    async def _until_ready(self) -> None:
        docker = Docker(self.host)
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                assert self._process is not None
                try:
                    await docker.version()
                    return
                except (aiohttp.ClientError, DockerError, OSError):
                    if self._process.poll() is not None or time.monotonic() > deadline:
                        raise RuntimeError(f"dockerd does not start:\n{self._log_text()}") from None
                await asyncio.sleep(0.05)  # another process sends no notification
        finally:
            await docker.close()

    async def _load(self) -> None:
        docker = Docker(self.host)
        try:
            await _import(docker, base())
        finally:
            await docker.close()

    def _log_text(self) -> str:
        return (self._folder / "log").read_text(errors="replace")[-2000:]

    def _end(self) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for mount in _mounts_below(self._folder):  # its mounts outlive it, and so would its folder
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)


def _fast() -> str | None:
    return next((folder for folder in _FAST if os.access(folder, os.W_OK)), None)


def _names(folder: Path, root: Path) -> Path:
    """A folder with the `iptables` by which containers of a named network get names; the host has no rule.

    It is unpacked and not installed, so variables state where its parts are.
    """
    place, (libraries, *_) = folder / "bin", (root / "usr" / "lib").glob("*-linux-gnu")
    place.mkdir(exist_ok=True)
    variables = f"LD_LIBRARY_PATH={libraries} XTABLES_LIBDIR={libraries}/xtables"
    (place / "iptables").write_text(f'#!/bin/sh\n{variables} exec {root}/usr/sbin/xtables-nft-multi iptables "$@"\n')
    (place / "iptables").chmod(0o755)
    return place


def _until_ended(containerd: psutil.Process) -> None:
    """Wait for its containerd, which ends after the engine."""
    deadline = time.monotonic() + 10
    while containerd.is_running() and containerd.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            containerd.kill()
        threading.Event().wait(0.02)


def _mounts_below(folder: Path) -> list[str]:
    places = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((place for place in places if place.startswith(f"{folder}/")), reverse=True)


def _options(folder: Path) -> list[str]:
    """Options with which it runs in a container or a small machine: no bridge, no firewall, permitted limits."""
    return [
        *("--data-root", f"{folder}/data", "--exec-root", f"{folder}/exec", "--pidfile", f"{folder}/pid"),
        *("--exec-opt", "native.cgroupdriver=cgroupfs", "--iptables=false", "--bridge=none"),
        *("--default-ulimit", "nofile=1024:1024", "--shutdown-timeout", "2"),
    ]


def base() -> Path:
    """The base image's files as an archive, created once."""
    root = unpacked("debootstrap")
    with alone("base") as folder:
        archive = folder / "base.tar"
        if not archive.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            _bootstrap(root, folder / "root")
            part = folder / "base.part"
            subprocess.run(["tar", "-C", str(folder / "root"), "-cf", str(part), "."], check=True)
            part.rename(archive)
            shutil.rmtree(folder / "root")
        return archive


def _bootstrap(tools: Path, target: Path) -> None:
    made = subprocess.run(
        [
            *PRIVATE_MOUNTS,
            *(f"{tools}/usr/sbin/debootstrap", "--variant=minbase", f"--include={_INCLUDED}"),
            *("bookworm", str(target), mirror()),
        ],
        env={**os.environ, "DEBOOTSTRAP_DIR": f"{tools}/usr/share/debootstrap"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    if made.returncode != 0:
        raise RuntimeError(f"no base image can be made: {made.stdout[-1000:]} {made.stderr[-1000:]}")
    for folder in (found for pattern in _SLIM for found in target.glob(pattern)):
        shutil.rmtree(folder)


async def _import(docker: Docker, archive: Path) -> None:
    name, _, tag = IMAGE.partition(":")
    with archive.open("rb") as content:
        async with docker._query(
            "images/create", "POST", params={"fromSrc": "-", "repo": name, "tag": tag}, data=content
        ) as answer:
            await answer.read()


if __name__ == "__main__":
    unpacked(*_PACKAGES, *_IPTABLES, *_BESIDE, "uidmap")
    base()
