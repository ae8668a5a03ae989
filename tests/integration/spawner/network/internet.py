"""A host with an internet, in network namespaces of one test: no packet leaves them, and they end with the test."""

import asyncio
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.engines.private_mounts import PRIVATE_MOUNTS

HERE = Path(__file__).parent
PUBLIC, PUBLIC6, OTHER = "198.51.100.10", "2001:db8:1::10", "203.0.113.20"
OWN = "203.0.113.77"
"""The host's own public address."""
PRIVATE = ("10.1.2.3", "172.16.5.5", "192.168.7.7", "100.64.1.1", "169.254.169.254", "100.100.100.200", "168.63.129.16")
PRIVATE6 = ("fd00:ec2::254", "fd12::1")
NAMES = {
    "public.test": [[PUBLIC, PUBLIC6]],
    "other.test": [[OTHER]],
    "inner.test": [["10.1.2.3"]],
    "loop.test": [["127.0.0.1"]],
    "meta.test": [["169.254.169.254", "fd00:ec2::254"]],
    "rebound.test": [[PUBLIC], ["10.1.2.3"]],
    "db.corp.test": [["10.1.2.3"]],
}
_FS, _MOUNTS, _NETWORK = 0x200, 0x20000, 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_HOST = f"""
set -e
mount --bind "$1" /etc/resolv.conf
ip link set lo up
ip link add leads0 type veth peer name comes0 netns "$2"
ip addr add 10.99.0.1/30 dev leads0; ip addr add {OWN}/32 dev leads0
ip -6 addr add fd99::1/64 dev leads0 nodad
ip link set leads0 up
echo set
read -r line
ip route add default via 10.99.0.2
ip -6 route add default via fd99::2
exec "$3" "$4" "$5" "$6"
"""
_WORLD = f"""
set -e
ip link set lo up
echo set
read -r line
ip addr add 10.99.0.2/30 dev comes0; ip -6 addr add fd99::2/64 dev comes0 nodad; ip link set comes0 up
for one in {" ".join((PUBLIC, OTHER, *PRIVATE))}; do ip addr add $one/32 dev lo; done
for one in {" ".join((PUBLIC6, *PRIVATE6))}; do ip -6 addr add $one/128 dev lo; done
ip route add default via 10.99.0.1; ip -6 route add default via fd99::1
exec "$1" "$2" "$3" "$4"
"""

_WORLD_PREFIX: Final = ("unshare", "--net")


@dataclass
class Internet:
    """A test's host and internet. `host` is the process whose namespaces are the host's."""

    host: subprocess.Popen[str]
    folder: Path
    """The folder that the public web server serves."""
    log: Path
    requested: Path

    @property
    def hits(self) -> list[str]:
        """Every connection that was made beyond the host, as `address port`."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def enter(self) -> None:
        """Move the calling thread to the test's host; processes that it starts are started there."""
        if _LIBC.unshare(_FS) != 0:
            raise OSError(ctypes.get_errno(), "unshare")
        for name, kind in (("net", _NETWORK), ("mnt", _MOUNTS)):
            descriptor = os.open(f"/proc/{self.host.pid}/ns/{name}", os.O_RDONLY)
            if _LIBC.setns(descriptor, kind) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            os.close(descriptor)

    def use(self) -> None:
        """Run what this event loop does in threads, such as starting sandboxes, on the test's host from now on."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2, initializer=self.enter))


@contextmanager
def internet(folder: Path) -> Iterator[Internet]:
    """Create an internet for one test."""
    served = folder / "served"
    served.mkdir()
    resolv, table = folder / "resolv.conf", folder / "names.json"
    resolv.write_text("nameserver 127.0.0.53\n")
    table.write_text(json.dumps(NAMES))
    log, requested = folder / "hits", folder / "asked"
    python = sys.executable
    with ExitStack() as stack:
        world = stack.enter_context(_held(_WORLD, python, HERE / "world.py", log, served, prefix=_WORLD_PREFIX))
        host = stack.enter_context(
            _held(
                _HOST,
                resolv,
                world.pid,
                python,
                HERE / "names.py",
                table,
                requested,
                prefix=("unshare", "-n", *PRIVATE_MOUNTS),
            )
        )
        for one in (world, host):
            _send_line(one, "go")
        for one in (world, host):
            _await_line(one, "ready")
        yield Internet(host, served, log, requested)


@contextmanager
def _held(script: str, *words: Any, prefix: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
    """A process in its own namespaces. It ends when its standard input ends."""
    command = [*prefix, "sh", "-c", script, "sh", *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            _await_line(process, "set")
            yield process
        finally:
            process.kill()


def _send_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin
    process.stdin.write(line + "\n")
    process.stdin.flush()


def _await_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout
    assert process.stdout.readline().strip() == wanted
