"""Attacks of an agent on its worker by system calls that compare only uids, which are the same for both."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from spawner.runtimes import isolation_gaps
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import WORKER, attack

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
DENIED = {"EPERM", "EACCES", "ENOSYS"}


async def test_limits_and_priority_of_the_worker_cannot_be_changed(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """An agent can set limits and priority only of its own processes: a CPU limit of 0 would end the worker."""
    found = await attack(
        eventually,
        await open_process(WORKER),
        plan_for("sbx-limits"),
        """
import resource
others = [int(name) for name in os.listdir('/proc') if name.isdigit() and int(name) != os.getpid()]
found = {}
for pid in others:
    found[f'cpu {pid}'] = tried(lambda: resource.prlimit(pid, resource.RLIMIT_CPU, (0, 0)))
    found[f'files {pid}'] = tried(lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)))
    found[f'idle {pid}'] = tried(lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)))
    found[f'nice {pid}'] = tried(lambda: os.setpriority(os.PRIO_PROCESS, pid, 19))
found['user'] = tried(lambda: os.setpriority(os.PRIO_USER, 0, 19))
own = [tried(lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0))), tried(lambda: os.nice(1))]
print(json.dumps([found, own, len(others)]))
""",
    )
    refused, own, others = found
    assert others >= 2
    assert set(refused.values()) == {"EPERM"}, refused
    assert not set(own) & DENIED


@pytest.mark.skipif(isolation_gaps.landlock_version() < 6, reason="this kernel can't keep signals in (Linux 6.12)")
async def test_signal_of_an_open_file_does_not_reach_the_worker(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A signal that the kernel sends to the owner of an open file, SIGKILL included, does not reach the worker.

    Neither does a signal that is queued for one thread. An agent's own process gets the same signals.
    """
    script = """
import fcntl
F_SETSIG, F_SETOWN_EX, OF_A_PROCESS = 10, 15, 1
def send_by_file(file, other, name, pid, number):
    name(file, pid)
    fcntl.fcntl(file, F_SETSIG, number)
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) | os.O_ASYNC)
    os.write(other, b'x')
def as_owner(file, pid): fcntl.fcntl(file, fcntl.F_SETOWN, pid)
def as_process(file, pid): fcntl.fcntl(file, F_SETOWN_EX, struct.pack('ii', OF_A_PROCESS, pid))
def send(pid):
    for name in (as_owner, as_process):
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
            send_by_file(*os.pipe(), name, pid, number)
            one, other = socket.socketpair()
            send_by_file(one.detach(), other.fileno(), name, pid, number)
own = subprocess.Popen(['sleep', '600'])
send(2)
send(own.pid)
queue, info = {'x86_64': 297, 'aarch64': 240}[platform.machine()], ctypes.create_string_buffer(128)
struct.pack_into('iii', info, 0, 9, 0, -1)
print(json.dumps([own.wait(), call(queue, 2, 2, 9, info)]))
"""
    found = await attack(eventually, await open_process(WORKER), plan_for("sbx-file-signals"), script)
    assert found[0] == -9
    assert found[1] in DENIED
