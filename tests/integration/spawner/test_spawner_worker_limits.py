"""Attacks of an agent on its worker by the system calls that compare only uids, which the two share."""

from collections.abc import Awaitable, Callable
from typing import Any

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
    """A CPU time limit of 0 would end it, a lowered priority silence it; an agent's own can be changed."""
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
