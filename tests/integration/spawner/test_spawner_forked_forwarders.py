"""Network forwarders of sandboxes that a preloaded process forks, in place of an exec."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd import process_signals, processes
from spawner.runtimes import fork_server
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.fork_server import Handover
from spawner.runtimes.process import ProcessRuntime
from tests.patience import PATIENCE

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

UP = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
_SAME = ("Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "SigBlk")


async def up(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> None:
    """Wait until the sandbox's worker runs: its forwarder has then set the network up."""
    await runtime.create(plan)
    await eventually((runtime.layout.directory(plan.unit).work / "up").exists)


def forwarders(runtime: ProcessRuntime, unit: str) -> dict[int, bool]:
    """The forwarders of a sandbox, and whether each is a fork."""
    lines = {pid: _words(pid) for pid in runtime.termination.members(runtime.layout.directory(unit))}
    found = {pid: words for pid, words in lines.items() if "python" in words[0] and "forwarder" in " ".join(words)}
    return {pid: "-m" in words for pid, words in found.items()}


def forwarder(runtime: ProcessRuntime, unit: str, *, forked: bool) -> int:
    ((pid, is_fork),) = forwarders(runtime, unit).items()
    assert is_fork is forked
    return pid


def _words(pid: int) -> list[str]:
    try:
        return Path("/proc", str(pid), "cmdline").read_text().split("\0")
    except OSError:  # it has just ended
        return [""]


def server(runtime: ProcessRuntime) -> int:
    assert runtime.forwarders is not None
    assert runtime.forwarders.pid is not None
    return runtime.forwarders.pid


def sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it has just been closed
            found.add(str(path.readlink()))
    return {name for name in found if name.startswith("socket:")}


def properties(pid: int) -> dict[str, Any]:
    folder = Path("/proc", str(pid))
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return {
        **{name: fields[name].split() for name in _SAME},
        "own user": fields["Uid"] == fields["Gid"],
        "limits": (folder / "limits").read_text(),
        "groups": sorted((folder / "cgroup").read_text().split()),
        "folder": str((folder / "cwd").readlink()),
        "namespaces": [(folder / "ns" / name).readlink() for name in ("user", "mnt", "pid", "ipc", "uts", "net")],
    }


async def test_forked_forwarder_has_what_an_executed_one_has(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A forked forwarder has the ids, capabilities, limits, groups, folder and namespaces of an executed one."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-same"))
    pid = forwarder(runtime, "sbx-same", forked=True)
    forked, variables = properties(pid), processes.environment_of(pid)
    assert {name.partition(b"=")[0] for name in variables if name} <= {b"LANG", b"PATH"}
    await runtime.remove("sbx-same")
    assert runtime.forwarders is not None
    runtime.forwarders.close()
    runtime.forwarders = None
    await up(eventually, runtime, plan_for("sbx-same"))
    assert forked == properties(forwarder(runtime, "sbx-same", forked=False))


async def test_forwarder_outlives_its_fork_server_and_ends_with_its_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A killed fork server takes no sandbox's network with it; another server forks the next sandbox's forwarder."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-before"))
    before, first = forwarder(runtime, "sbx-before", forked=True), processes.find(server(runtime))
    assert first is not None
    first.signal(signal.SIGKILL)
    await process_signals.wait_ended(first, PATIENCE)
    await up(eventually, runtime, plan_for("sbx-after"))
    assert server(runtime) != first.pid
    assert forwarder(runtime, "sbx-after", forked=True)
    assert forwarder(runtime, "sbx-before", forked=True) == before
    assert (await runtime.address("sbx-before", 8080)).url.startswith("http://127.0.0.1:")
    found = processes.find(before)
    assert found is not None
    await runtime.stop("sbx-before", PATIENCE)
    assert await process_signals.wait_ended(found, PATIENCE)


async def test_stuck_fork_server_is_replaced_and_its_forwarder_is_executed(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork server that reads no request delays one start; it is replaced, and that forwarder is executed."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-first"))
    os.kill(server(runtime), signal.SIGSTOP)
    monkeypatch.setattr(fork_server, "_FORK_SECONDS", 0.2)
    await up(eventually, runtime, plan_for("sbx-stuck"))
    forwarder(runtime, "sbx-stuck", forked=False)
    monkeypatch.undo()
    await up(eventually, runtime, plan_for("sbx-next"))
    forwarder(runtime, "sbx-next", forked=True)


async def test_start_that_is_cancelled_while_a_fork_server_is_stuck_leaves_no_connection(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Neither the one to the worker's server, which does not reply, nor the one to the forwarder's."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-first"))
    assert runtime.forks is not None
    assert runtime.forks.pid is not None
    os.kill(runtime.forks.pid, signal.SIGSTOP)
    before = sockets()
    starting = asyncio.create_task(runtime.create(plan_for("sbx-stuck")))
    claim = runtime.layout.directory("sbx-stuck").first_run().claim
    await eventually(lambda: claim.exists() and len(sockets() - before) <= 2)  # it waits for the servers
    starting.cancel()
    with pytest.raises(asyncio.CancelledError) as cancelled:
        await starting
    await eventually(lambda: sockets() == before)
    assert cancelled.traceback, "it would keep alive what is not closed"


async def test_killed_forwarder_is_replaced_by_a_program(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """The shim restarts a killed forwarder as a program, as it does with one that it has started itself."""
    runtime = await open_process(UP)
    await up(eventually, runtime, plan_for("sbx-one"))
    os.kill(forwarder(runtime, "sbx-one", forked=True), signal.SIGKILL)
    await eventually(lambda: list(forwarders(runtime, "sbx-one").values()) == [False])


async def test_of_two_shims_for_one_run_only_one_has_a_forwarder(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A second forwarder for a run ends without touching the run's files, where it would take the socket for ports."""
    runtime = await open_process(UP)
    place, plan = runtime.layout.directory("sbx-two"), plan_for("sbx-two")
    runtime.worker_starter.set_up(place, plan)
    start, run = runtime.worker_starter.cold_start_parameters(place, plan), place.first_run()
    children = []
    for _ in range(2):
        shim, forked = await asyncio.to_thread(runtime.worker_starter._spawn_forked, place, run, start, Handover())
        for _server, connection in forked:
            with connection:
                children.append(processes.identify((await asyncio.to_thread(connection.recv, 1024)).decode()))
        assert shim
    await eventually((place.work / "up").exists)
    lent = [children[1], children[3]]
    await eventually(lambda: sum(process.alive() for process in lent) == 1)
    assert forwarder(runtime, "sbx-two", forked=True) in {process.pid for process in lent}
    assert (await runtime.address("sbx-two", 8080)).url.startswith("http://127.0.0.1:")


async def test_without_control_groups_the_shim_starts_the_forwarder(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Without control groups the shim starts the forwarder: nothing else would find it when the sandbox is ended."""
    runtime = await open_process(UP, use_groups=False)
    await up(eventually, runtime, plan_for("sbx-one"))
    forwarder(runtime, "sbx-one", forked=False)
