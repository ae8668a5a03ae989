"""Attacks from inside a sandbox of the process runtime, run as its agent. Until then no test ran them as an agent.

Invariant: no process in a sandbox has a host uid, a namespace or a system call by which it could reach more than its
own processes and files.
"""

import ctypes
import os
import platform
import subprocess
import uuid
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes.bubblewrap import INSIDE
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import WORKER, attack, with_namespaces

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only a spawner that is root has host uids to give away")
DENIED = {"EPERM", "EACCES", "ENOSYS", "ENOSPC", "EROFS", "EINVAL"}


def uids(pid: int) -> set[int]:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return {int(number) for line in lines if line.startswith(("Uid:", "Gid:")) for number in line.split()[1:]}


@as_root
async def test_each_sandbox_has_its_own_host_uid(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Worker, agent and entered commands of a sandbox have one unprivileged uid and gid, which no other sandbox has."""
    runtime = await open_process(WORKER)
    found = []
    for name in ("sbx-one", "sbx-two"):
        await attack(eventually, runtime, plan_for(name), "print(json.dumps([os.getuid(), os.getgroups()]))")
        place = runtime.layout.directory(name)
        assert place.user is not None
        assert runtime.launch is not None
        assert runtime.launch.users is not None
        assert place.user in runtime.launch.users.ids
        worker = await runtime.termination.wait_for_worker(place)
        assert uids(worker.pid) == {place.user}
        assert {folder.stat().st_uid for folder in place.own_folders} == {place.user}
        assert (await runtime.run(name, Command(argv=["id", "-u"]))).out == b"1000\n"
        found.append(place.user)
    assert len(set(found)) == 2


async def test_forbidden_system_calls_fail(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Mounts by any interface, kernel programs, file handles, foreign sockets, and terminal input are refused."""
    found = await attack(
        eventually,
        await open_process(WORKER),
        plan_for("sbx-calls"),
        """
x86 = platform.machine() == 'x86_64'
n = dict(mount=(165, 40), umount2=(166, 39), pivot_root=(155, 41), chroot=(161, 51), bpf=(321, 280),
         perf=(298, 241), userfaultfd=(323, 282), handle=(304, 265), keyctl=(250, 219), add_key=(248, 217),
         aio=(206, 0), pair=(53, 199), swapon=(167, 224), fsopen=(430, 430),
         open_tree=(428, 428), move_mount=(429, 429), io_uring=(425, 425))
args = {'mount': (b'none', b'/tmp', b'tmpfs', 0, None), 'add_key': (b'user', b'x', b'y', 1, -3),
        'keyctl': (0, -3, 0), 'pair': (40, 2, 0, 0),
        'fsopen': (b'tmpfs', 0), 'userfaultfd': (1,)}
found = {name: call(numbers[0 if x86 else 1], *args.get(name, (0, 0, 0, 0))) for name, numbers in n.items()}
for name, words in dict(packet=(17, 3), vsock=(40, 1), alg=(38, 5), raw=(2, 3), netfilter=(16, 3, 12)).items():
    found[name] = tried(lambda: socket.socket(*words))
found['sysctl'] = tried(lambda: open('/proc/sys/kernel/core_pattern', 'w'))
found['terminal'] = call(16 if x86 else 29, 0, 0x5412, b'x')
found['newer'] = call(600)
found['x32'] = call(0x40000000 + 39) if x86 else 'ENOSYS'
print(json.dumps(found))
""",
    )
    assert set(found.values()) <= DENIED | {"EAFNOSUPPORT", "EPROTONOSUPPORT"}, found


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the other calling convention is one of x86")
async def test_foreign_calling_convention_ends_the_program(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A program that uses `int 0x80`, whose system call numbers are those of i386, is ended."""
    code = "import ctypes, mmap\\nm = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'))\\n"
    code += "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()"
    found = await attack(
        eventually,
        await open_process(WORKER),
        plan_for("sbx-i386"),
        f'print(json.dumps(subprocess.run([sys.executable, "-c", "{code}"]).returncode))',
    )
    assert found == -31  # SIGSYS


@pytest.fixture
def host_group() -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """A control group of version 2 on this host, with a process in it."""
    root = next(path for path in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup") if Path(path, "cgroup.procs").exists())
    if not Path(root, "cgroup.controllers").exists():
        pytest.skip("this host has no control groups of version 2")
    group = Path(root, f"sandherd-test-{uuid.uuid4().hex[:8]}")
    group.mkdir()
    process = subprocess.Popen(["sleep", "600"])
    try:
        (group / "cgroup.procs").write_text(str(process.pid))
        yield group, process
    finally:
        process.kill()
        process.wait()
        group.rmdir()


@as_root
async def test_control_groups_of_the_host_are_unreachable(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, host_group: tuple[Path, "subprocess.Popen[bytes]"]
) -> None:
    """The reported attack, which mounts cgroup2 in its own namespaces and kills a group, fails, and so do others.

    They also fail in a profile with user namespaces, where such a mount succeeds: the files belong to root.
    """
    group, process = host_group
    attacks = [
        "unshare -UrmC sh -c 'mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c && echo 1 >/tmp/c/GROUP/cgroup.kill'",
        "mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c && echo 1 >/tmp/c/GROUP/cgroup.kill",
        "unshare -UrmC sh -c 'mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c && mkdir /tmp/c/own'",
        "unshare -Urm sh -c 'mkdir -p /tmp/c; mount -t cgroup2 none /tmp/c && echo $$ >/tmp/c/cgroup.procs'",
        "mkdir -p /tmp/d; mount -t cgroup -o memory none /tmp/d && echo /tmp/x >/tmp/d/release_agent",
        "echo 0 >/sandbox/cgroup/../cgroup.procs",
    ]
    script = f"""
lines = [line.replace('GROUP', {group.name!r}) for line in {attacks!r}]
print(json.dumps([subprocess.run(['sh', '-c', line]).returncode for line in lines]))
"""
    runtime = await open_process(WORKER)
    for plan in (plan_for("sbx-groups"), with_namespaces(plan_for("sbx-nested"))):
        codes = await attack(eventually, runtime, plan, script)
        assert 0 not in codes, plan.sandbox
        assert process.poll() is None


@as_root
async def test_limits_cannot_be_raised(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Memory and processes stay limited, whatever an agent writes to the files of its own groups."""
    runtime = await open_process(WORKER)
    plan = plan_for("sbx-limits", memory_mb=300, processes=50)
    script = """
files = [str(p) for p in pathlib.Path('/sandbox/cgroup').iterdir() if p.is_file()]
def write(path, text): open(path, 'w').write(text)
values = ('-1', 'max', '1', '99999')
done = [p for p in files for v in values if tried(lambda: write(p, v)) == 'done']
done += [p for p in files if tried(lambda: os.chmod(p, 0o666)) == 'done']
mkdir = tried(lambda: os.mkdir('/sandbox/cgroup/sub'))
print(json.dumps([done, mkdir, resource.getrlimit(resource.RLIMIT_NOFILE)[1]]))
"""
    done, mkdir, _files = await attack(eventually, runtime, plan, script)
    assert done == []
    assert mkdir in DENIED
    assert runtime.groups.memory is not None
    assert runtime.groups.pids is not None
    memory = "memory.max" if runtime.groups.version == 2 else "memory.limit_in_bytes"
    assert (runtime.groups.memory / plan.unit / memory).read_text().strip() == str(300 * 1024 * 1024)
    assert (runtime.groups.pids / plan.unit / "pids.max").read_text().strip() == "50"


async def test_device_nodes_of_the_host_cannot_be_changed(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Modes, owners and times of device nodes can't be changed, by name or by an open descriptor, and none created."""
    nodes = ("null", "zero", "full", "random", "urandom", "tty")
    before = {name: (Path("/dev", name).stat().st_mode, Path("/dev", name).stat().st_uid) for name in nodes}
    found = await attack(
        eventually,
        await open_process(WORKER),
        plan_for("sbx-devices"),
        f"""
found = {{}}
for name in {nodes!r}:
    path = '/dev/' + name
    found['mode ' + name] = tried(lambda: os.chmod(path, 0o660))
    found['owner ' + name] = tried(lambda: os.chown(path, 1000, 1000))
    found['times ' + name] = tried(lambda: os.utime(path, (1, 1)))
null = os.open('/dev/null', os.O_RDWR)
found['descriptor'] = tried(lambda: os.fchmod(null, 0o660))
found['made'] = tried(lambda: os.mknod('{INSIDE}/work/disk', 0o60666, os.makedev(8, 0)))
print(json.dumps(found))
""",
    )
    assert set(found.values()) <= DENIED, found
    assert {name: (Path("/dev", name).stat().st_mode, Path("/dev", name).stat().st_uid) for name in nodes} == before


@as_root
async def test_file_of_an_agent_gives_no_root_rights(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A setuid file belongs to the sandbox's uid and has no effect inside; file capabilities are refused."""
    runtime = await open_process(WORKER)
    script = """
import shutil
shutil.copy('/bin/sh', 's'); os.chmod('s', 0o6755)
raw = struct.pack('<IIIII', 0x02000001, 0xffffffff, 0, 0, 0)
caps = tried(lambda: os.setxattr('s', 'security.capability', raw))
inside = subprocess.run(['./s', '-p', '-c', 'id -u; grep NoNewPrivs /proc/self/status'], capture_output=True, text=True)
mounts = [line.split()[4:6] for line in open('/proc/self/mountinfo')]
writable = (*('/sandbox/' + name for name in ('work', 'state', 'home', 'previous')), '/tmp', '/run')
options = {where: how for where, how in mounts if where in writable}
given = tried(lambda: os.chown('s', 0, 0))
print(json.dumps([caps, inside.stdout, options, given]))
"""
    caps, inside, options, given = await attack(eventually, runtime, plan_for("sbx-setuid"), script)
    place = runtime.layout.directory("sbx-setuid")
    assert (place.work / "s").stat().st_uid == place.user
    assert place.folder.stat().st_mode & 0o777 == 0o700
    assert {caps, given} <= DENIED
    assert inside.split() == ["1000", "NoNewPrivs:", "1"]
    assert len(options) == 6
    assert all({"nosuid", "nodev"} <= set(how.split(",")) for how in options.values()), options


@as_root
async def test_sandbox_exhausts_inotify_only_for_itself(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A sandbox that uses all inotify instances of its uid leaves the host's root and another sandbox with theirs."""
    runtime = await open_process(WORKER)
    take = """
made = 0
while made < 5000 and libc.inotify_init() >= 0: made += 1
print(json.dumps([made, errno.errorcode.get(ctypes.get_errno())]), flush=True)
if os.fork() == 0:  # one that holds them on
    nothing = os.open('/dev/null', os.O_RDWR)
    for number in range(3): os.dup2(nothing, number)
    signal.pause()
"""
    first = await attack(eventually, runtime, plan_for("sbx-greedy", open_files=8000), take)
    second = await attack(eventually, runtime, plan_for("sbx-other", open_files=8000), take)
    assert first[1] == second[1] == "EMFILE"
    assert second[0] >= first[0]
    of_root = ctypes.CDLL(None).inotify_init()
    assert of_root >= 0
    os.close(of_root)
