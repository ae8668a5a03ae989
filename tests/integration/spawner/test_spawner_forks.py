"""Workers that a preloaded process forks into their sandboxes, in place of an exec."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd import process_signals, processes
from spawner.runtimes import fork_server
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import ObservedSandbox, SandboxPlan
from spawner.runtimes.fork_server import ForkServer
from spawner.runtimes.process import ProcessRuntime
from tests.patience import PATIENCE

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

REPORT = """
import json, os, pathlib, resource, signal, sys
def status():
    lines = pathlib.Path('/proc/self/status').read_text().splitlines()
    fields = dict(line.split(':', 1) for line in lines)
    names = ('Umask', 'Uid', 'Gid', 'Groups', 'SigBlk', 'SigIgn', 'SigCgt', 'NoNewPrivs', 'Seccomp', 'Seccomp_filters')
    return {name: value.split() for name, value in fields.items() if name in names or name.startswith('Cap')}
limits = {name: resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith('RLIMIT_')}
found = dict(
    status=status(), limits=limits, folder=os.getcwd(), environment=dict(os.environ), path=sys.path, argv=sys.argv,
    open=[name for name in os.listdir('/proc/self/fd') if os.path.exists('/proc/self/fd/' + name)],
    leads=os.getsid(0) == os.getpid(), keys=pathlib.Path('/proc/self/oom_score_adj').read_text(),
    dumpable=os.stat('/proc/self/stat').st_uid == os.getuid(), encoding=sys.stdout.encoding,
    buffered=sys.stderr.line_buffering, nice=os.nice(0), affinity=sorted(os.sched_getaffinity(0)),
    groups=sorted(pathlib.Path('/proc/self/cgroup').read_text().split()),
)
pathlib.Path('part').write_text(json.dumps(found)); os.rename('part', 'report')
signal.pause()
"""
UP = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
CANARY = "canary-7f3c51d0e2"


async def reported(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> dict[str, Any]:
    await runtime.create(plan)
    report = runtime.layout.directory(plan.unit).work / "report"
    await eventually(report.exists)
    found: dict[str, Any] = json.loads(report.read_text())
    return found


async def up(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> None:
    await runtime.create(plan)
    await eventually((runtime.layout.directory(plan.unit).work / "up").exists)


async def end(eventually: Eventually, runtime: ProcessRuntime, unit: str) -> ObservedSandbox:
    async def ended() -> ObservedSandbox | None:
        seen = await runtime.observe(unit)
        return seen if seen and not seen.alive else None

    seen: ObservedSandbox = await eventually(ended)
    return seen


def inside(runtime: ProcessRuntime, unit: str) -> dict[int, int]:
    """The host's process ids of a sandbox's processes, by their ids in its namespace."""
    (claim,) = runtime.termination._running_shims(runtime.layout.directory(unit))  # the shim
    found = {}
    for pid in processes.descendants(claim.pid):
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
        numbers = next(line for line in lines if line.startswith("NSpid:")).split()[1:]
        if len(numbers) > 1:
            found[int(numbers[-1])] = pid
    return found


def is_forked(runtime: ProcessRuntime, unit: str) -> bool:
    """Whether the worker is a fork: it is not the program that bubblewrap has started."""
    return max(inside(runtime, unit)) > 2


def server(runtime: ProcessRuntime) -> int:
    assert runtime.forks is not None
    assert runtime.forks.pid is not None
    return runtime.forks.pid


async def killed(pid: int) -> None:
    found = processes.find(pid)
    assert found is not None
    found.signal(signal.SIGKILL)
    await process_signals.wait_ended(found, PATIENCE)


async def test_forked_worker_has_what_an_executed_one_has(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A forked worker has the ids, capabilities, filter, limits, groups, variables and files of an executed one."""
    runtime = await open_process(REPORT)
    forked = await reported(eventually, runtime, plan_for("sbx-same"))
    assert is_forked(runtime, "sbx-same")
    namespaces = set()
    for pid in inside(runtime, "sbx-same").values():
        kinds = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")
        namespaces.add(tuple(Path("/proc", str(pid), "ns", kind).readlink() for kind in kinds))
    assert len({one[1:] for one in namespaces}) == 1
    await runtime.remove("sbx-same")
    assert runtime.forks is not None
    runtime.forks.close()
    runtime.forks = None
    executed = await reported(eventually, runtime, plan_for("sbx-same"))
    assert not is_forked(runtime, "sbx-same")
    assert forked.pop("open") == ["0", "1", "2"]
    assert {"0", "1", "2"} <= set(executed.pop("open")), "an executed one also has what this test has inherited"
    for found in (forked, executed):
        found["status"]["SigIgn"] = int(found["status"]["SigIgn"][0], 16) & 0x7FFFFFFF  # without those of libc
        found["status"].pop("Uid"), found["status"].pop("Gid")  # each sandbox has its own: test_spawner_sandbox_attacks
        found["environment"].pop("LC_CTYPE", None)  # set by the interpreter, for itself
        found["environment"].pop("OLDPWD", None)  # set by a shell
    assert forked == executed


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
async def test_end_of_a_forked_worker_is_reported(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, number: signal.Signals
) -> None:
    """The status has a fatal signal; SIGTERM reaches the worker, which may choose its exit status."""
    code = f"import signal, sys; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); {UP}; signal.pause()"
    runtime = await open_process(code)
    await up(eventually, runtime, plan_for("sbx-end"))
    found = inside(runtime, "sbx-end")
    if number is signal.SIGTERM:
        await runtime.stop("sbx-end", PATIENCE)
    else:
        os.kill(found[max(found)], number)
    seen = await end(eventually, runtime, "sbx-end")
    assert seen.end is not None
    assert seen.end.code == (7 if number is signal.SIGTERM else 128 + number)


async def test_sandboxes_outlive_their_fork_server_and_the_next_has_a_new_one(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A killed fork server ends no sandbox and refuses no command; another server forks the next sandbox."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-before"))
    first = server(runtime)
    await killed(first)
    assert (await runtime.run("sbx-before", Command(argv=["echo", "here"]))).out == b"here\n"
    await up(eventually, runtime, plan_for("sbx-after"))
    assert server(runtime) != first
    assert is_forked(runtime, "sbx-after")
    assert (await runtime.run("sbx-before", Command(argv=["echo", "again"]))).out == b"again\n"
    seen = await runtime.observe("sbx-before")
    assert seen is not None
    assert seen.alive


async def test_stuck_fork_server_is_replaced_and_its_worker_is_executed(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that reads no request delays one start: that stub becomes the worker, also if the server is killed."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-first"))
    os.kill(server(runtime), signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "_FORK_SECONDS", 0.2)
    await up(eventually, runtime, plan_for("sbx-stuck"))
    assert not is_forked(runtime, "sbx-stuck")
    monkeypatch.undo()
    await up(eventually, runtime, plan_for("sbx-next"))
    assert is_forked(runtime, "sbx-next")


async def test_lost_child_of_the_fork_server_loses_no_start(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """If the server's child is killed before it has forked the worker, its stub becomes the worker."""
    runtime = await open_process(UP)
    assert runtime.forks is not None
    place, plan = runtime.layout.directory("sbx-lost"), plan_for("sbx-lost")
    runtime.worker_starter.set_up(place, plan)
    start, run = runtime.worker_starter.cold_start_parameters(place, plan), place.first_run()
    near, far = socket.socketpair()
    with near, far:
        connection = runtime.worker_starter._request_fork(place, run, start, near)  # between its steps
        assert connection is not None
        child = processes.identify(connection.recv(1024).decode()).pid
        connection.close()
        near.close()
        await killed(child)
        runtime.worker_starter._spawn(place, run, start, far)  # as above
    await eventually((place.work / "up").exists)
    assert not is_forked(runtime, "sbx-lost")


async def test_stuck_child_of_the_fork_server_ends_with_its_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A server's child that stops after its reply delays only its sandbox, which can be ended and leaves no process."""
    runtime = await open_process(UP)
    assert runtime.forks is not None
    place, plan = runtime.layout.directory("sbx-stopped"), plan_for("sbx-stopped")
    runtime.worker_starter.set_up(place, plan)
    start, run = runtime.worker_starter.cold_start_parameters(place, plan), place.first_run()
    near, far = socket.socketpair()
    with near, far:
        connection = runtime.worker_starter._request_fork(place, run, start, near)  # as above
        assert connection is not None
        with connection:
            child = processes.identify(connection.recv(1024).decode())
        child.signal(signal.SIGSTOP)
        near.close()
        runtime.worker_starter._spawn(place, run, start, far)  # as above
    await eventually(run.claim.exists)
    await up(eventually, runtime, plan_for("sbx-other"))
    await runtime.stop("sbx-stopped", 0)
    await end(eventually, runtime, "sbx-stopped")
    await runtime.remove("sbx-stopped")
    child.signal(signal.SIGCONT)
    assert await process_signals.wait_ended(child, PATIENCE)


async def test_lost_holder_ends_its_sandbox(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """The worker does not outlive the process that reports its end: the sandbox ends as if it was killed."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-holder"))
    found = inside(runtime, "sbx-holder")
    os.kill(sorted(found.items())[-2][1], signal.SIGKILL)
    seen = await end(eventually, runtime, "sbx-holder")
    assert seen.end is not None
    assert seen.end.code == 137


OPEN_PARENT = """
import ctypes, os, pathlib, signal
found = []
for name in ('environ', 'mem', 'maps', 'fd'):
    try:
        os.listdir('/proc/self/fd/..') if name == 'fd' and os.listdir(f'/proc/{os.getppid()}/fd') else None
        name == 'fd' or open(f'/proc/{os.getppid()}/{name}', 'rb')
        found.append(name)
    except PermissionError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
if libc.ptrace(16, os.getppid(), 0, 0) == 0:  # PTRACE_ATTACH
    found.append('ptrace')
pathlib.Path('part').write_text(' '.join(found)); os.rename('part', 'opened'); signal.pause()
"""


async def test_holder_can_not_be_traced_or_read_from_the_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """No process, even outside of a Landlock domain, can trace or read the holder, which has the worker's variables."""
    runtime = await open_process(OPEN_PARENT)
    await runtime.create(plan_for("sbx-parent"))
    opened = runtime.layout.directory("sbx-parent").work / "opened"
    await eventually(opened.exists)
    assert is_forked(runtime, "sbx-parent")
    assert opened.read_text() == ""


async def test_sandboxes_at_once_are_all_forked(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """All of several sandboxes that start at the same time are forked, and none is lost."""
    runtime = await open_process(UP)
    names = [f"sbx-{number}" for number in range(8)]
    await asyncio.gather(*(up(eventually, runtime, plan_for(name)) for name in names))
    assert all(is_forked(runtime, name) for name in names)


async def test_fork_server_has_nothing_of_the_spawner_and_of_sandboxes(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fork server has no variable, memory or descriptor of the spawner, and no variable of a task."""
    monkeypatch.setenv("SANDHERD_API_KEY", CANARY)
    secret = bytearray(CANARY.encode())
    runtime = await open_process(UP + f"  # {'x'.join('no')}")
    plan = plan_for(f"sbx-{CANARY}")
    await up(eventually, runtime, plan)
    await runtime.run(plan.unit, Command(argv=["true"], environment={"KEY": CANARY}))
    assert contains(os.getpid(), bytes(secret)), "otherwise the search finds nothing anywhere"
    found = inside(runtime, plan.unit)
    assert contains(found[max(found)], CANARY.encode())
    assert runtime.forwarders is not None
    assert runtime.forwarders.pid is not None
    for pid in (server(runtime), runtime.forwarders.pid):
        assert not contains(pid, CANARY.encode())
        links = [str(descriptor.readlink()) for descriptor in Path("/proc", str(pid), "fd").iterdir()]
        assert len([link for link in links if link.startswith("socket:")]) == 1


def contains(pid: int, text: bytes) -> bool:
    """Whether a process has this text in its writable memory."""
    with Path("/proc", str(pid), "mem").open("rb", buffering=0) as memory:
        for line in Path("/proc", str(pid), "maps").read_text().splitlines():
            if " rw" not in line:
                continue
            begin, stop = (int(number, 16) for number in line.split()[0].split("-"))
            memory.seek(begin)
            try:
                if text in memory.read(stop - begin):
                    return True
            except OSError:
                continue
    return False


@pytest.mark.parametrize("before", ["executed", "forked"])
async def test_spawner_of_another_release_continues_with_running_sandboxes(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, before: str
) -> None:
    """A spawner that forks finds, enters and stops what one without forks has started, and the reverse."""
    runtime = await open_process(UP)
    if before == "executed":
        runtime.forks = None
    await up(eventually, runtime, plan_for("sbx-old"))
    assert is_forked(runtime, "sbx-old") is (before == "forked")
    after = await open_process(UP)
    if before == "forked":
        after.forks = None
    else:
        await up(eventually, after, plan_for("sbx-new"))
    assert (await after.run("sbx-old", Command(argv=["echo", "here"]))).out == b"here\n"
    await after.stop("sbx-old", PATIENCE)
    seen = await end(eventually, after, "sbx-old")
    assert seen.end is not None
    assert seen.end.code == 128 + signal.SIGTERM


def test_worker_that_can_not_be_loaded_is_executed() -> None:
    """A server that ends before it has forked anything is not started again for a while; the worker is executed."""
    forks = ForkServer((sys.executable, "-P", "-m", "no_such_worker"), "")
    try:
        assert forks.usable
        while (connection := forks.request(b"{}", [])) is not None:
            with connection, suppress(ConnectionError):
                assert connection.recv(64) == b""
        assert not forks.usable
    finally:
        forks.close()


def test_fork_server_ends_with_its_spawner() -> None:
    """The fork server ends with its spawner, also if the spawner is killed."""
    code = """
import os, signal, sys
from spawner.runtimes.fork_server import ForkServer
forks = ForkServer((sys.executable, "-P", "-c", "pass"), "")
connection = forks.request(b"{}", [])
connection.recv(64)
print(forks.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    found = processes.find(int(result.stdout))
    assert found is None or asyncio.run(process_signals.wait_ended(found, PATIENCE))


def test_preloaded_modules_hold_nothing_of_the_host() -> None:
    """The preloaded modules have no thread, no descriptor, and no name, address or folder of the host in memory.

    The models that a worker reads and publishes first are already built: no start pays for that.
    """
    code = """
import os, platform, tempfile, threading, uuid
from sandherd_worker.main import preload
before = os.listdir("/proc/self/fd")
preload()
assert os.listdir("/proc/self/fd") == before
assert threading.active_count() == 1 and len(os.listdir("/proc/self/task")) == 1
assert platform._uname_cache is None and tempfile.tempdir is None and uuid._node is None
from sandherd.contracts.commands import TaskSpec
from sandherd.contracts.envelope import _envelope_of
from sandherd.contracts.envelope_writer import _NoData
from sandherd.contracts.events.agent import AgentStarted
assert TaskSpec.__pydantic_complete__ and AgentStarted.__pydantic_complete__
assert _envelope_of(_NoData).__pydantic_complete__ and _envelope_of.cache_info().hits == 1
"""
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=PATIENCE)
