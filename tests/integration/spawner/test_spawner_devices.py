"""Device nodes and pseudo-terminals of sandboxes. Invariant: no two sandboxes of a root spawner share them."""

import errno
import marshal
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from spawner.runtimes import launcher
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import WORKER, attack

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only a spawner that is root makes devices for each sandbox")
NODES: Final = ("null", "zero", "full", "random", "urandom", "tty")
USER: Final = 54_321


@as_root
async def test_device_nodes_are_the_sandboxs_own(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Each sandbox has its own device nodes: an agent can set their times, but change no mode, owner or directory."""
    found = await attack(
        eventually,
        await open_process(WORKER),
        plan_for("sbx-nodes"),
        f"""
found = {{}}
for name in {NODES!r}:
    path = '/dev/' + name
    assert tried(lambda: os.utime(path)) == 'done'
    found[name] = [os.stat(path).st_dev, tried(lambda: os.chmod(path, 0o600)), tried(lambda: os.unlink(path))]
print(json.dumps(found))
""",
    )
    for name, (device, *tried) in found.items():
        assert device != Path("/dev", name).stat().st_dev, name
        assert set(tried) <= {"EPERM", "EACCES"}, (name, tried)


@as_root
async def test_pseudo_terminals_are_limited_per_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A sandbox gets 64 pseudo-terminals of the thousands that it tries to open, and sees no other pseudo-terminal."""
    script = """
import pty
seen, opened = os.listdir('/dev/pts'), []
def open_all():
    while len(opened) < 500: opened.append(os.open('/dev/ptmx', os.O_RDWR | os.O_NOCTTY))
print(json.dumps([seen, tried(open_all), len(opened)]))
"""
    found = await attack(eventually, await open_process(WORKER), plan_for("sbx-terminals"), script)
    assert found == [["ptmx"], errno.errorcode[errno.ENOSPC], 64]


async def test_devices_work(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Device nodes, links to open files, shared memory, and a program with its own terminal work."""
    script = """
import pty, mmap
pathlib.Path('/dev/null').write_text('x')
full = tried(lambda: pathlib.Path('/dev/full').write_text('x'))
nodes = [len(open('/dev/' + name, 'rb').read(3)) for name in ('null', 'zero', 'full', 'random', 'urandom')]
shm = pathlib.Path('/dev/shm/x'); shm.write_text('shared')
piped = subprocess.run(['cat', '/dev/stdin', '/dev/fd/0'], input='in', capture_output=True, text=True).stdout
pid, terminal = pty.fork()
if pid == 0:
    os.execvp('sh', ['sh', '-c', 'tty; echo typed >/dev/tty'])
said = b''
while True:
    try: more = os.read(terminal, 1000)
    except OSError: break
    if not more: break
    said += more
status = os.waitpid(pid, 0)[1]
print(json.dumps([full, nodes, shm.read_text(), piped, said.decode().split(), status]))
"""
    found = await attack(eventually, await open_process(WORKER), plan_for("sbx-typing"), script)
    assert found == ["ENOSPC", [0, 3, 3, 3, 3], "shared", "in", ["/dev/pts/0", "typed"], 0]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter; pytest's own folders are closed to others."""
    with tempfile.TemporaryDirectory(prefix="sandherd-devices-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@as_root
def test_hosts_device_nodes_are_mounted_without_mknod(open_folder: Path) -> None:
    """Root in a container without CAP_MKNOD has working device nodes, and pseudo-terminals are limited nevertheless."""
    stage = open_folder / "stage"
    stage.mkdir(mode=0o755)
    look = "echo x >$1/null && head -c 3 $1/zero | wc -c && stat -c %t:%T $1/tty && grep -c max=64 /proc/mounts"
    launch = {
        "user": USER,
        "stage": str(stage),
        "mounts": [],
        "covers": [],
        "argv": ["/bin/sh", "-c", look, "sh", str(stage / "dev")],
        "filter": b"",
    }
    (open_folder / "launch").write_bytes(marshal.dumps(launch))
    line = [sys.executable, "-I", "-S", launcher.__file__, str(open_folder / "launch")]
    weaker = ["setpriv", "--bounding-set=-mknod", *line]
    done = subprocess.run(weaker, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert done.stdout.split() == ["3", "5:0", "1"], done.stderr
