"""The process runtime with real processes, with and without isolation."""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandherd import process_signals, processes
from spawner.runtimes import shim
from spawner.runtimes.contract import ObservedSandbox, RuntimeFailedError, SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from spawner.runtimes.worker_start import WorkerStarter

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

both = pytest.mark.parametrize("isolation", ["bubblewrap", "none"])

SLEEP = "import signal, pathlib; pathlib.Path('up').touch(); signal.pause()"
STUBBORN = """
import os, pathlib, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def daemon(clear):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            code = "import signal,time\\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\\nwhile True: time.sleep(60)"
            os.execve(sys.executable, [sys.executable, "-c", code], {} if clear else dict(os.environ))
        os._exit(0)
    os.wait()
daemon(False)
if "no-clear" not in os.environ["SANDHERD_TASK_ID"]: daemon(True)
pathlib.Path("up").touch()
while True: time.sleep(60)
"""


async def up(eventually: Eventually, runtime: ProcessRuntime, sandbox: str) -> None:
    await eventually((runtime.layout.directory(sandbox).work / "up").exists)


async def end(eventually: Eventually, runtime: ProcessRuntime, sandbox: str) -> ObservedSandbox:
    async def ended() -> ObservedSandbox | None:
        seen = await runtime.observe(sandbox)
        return seen if seen and not seen.alive else None

    seen: ObservedSandbox = await eventually(ended)
    return seen


def log_lines(runtime: ProcessRuntime) -> list[str]:
    ended: list[str] = []
    runtime.on_exit(ended.append)
    return ended


def report(runtime: ProcessRuntime, sandbox: str) -> Any:
    return json.loads((runtime.layout.directory(sandbox).work / "report").read_text())


@both
async def test_sandbox_is_created_once_and_its_end_is_reported(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """Creating twice starts one worker; its end is reported with its exit status."""
    runtime = await open_process("open('runs', 'a').write('x')", isolation)
    ended = log_lines(runtime)
    plan = plan_for("sbx-once")
    await asyncio.gather(runtime.create(plan), runtime.create(plan))
    await eventually(lambda: ended)
    seen = await end(eventually, runtime, "sbx-once")
    assert seen.runs == 1
    assert seen.end
    assert seen.end.drained
    assert (runtime.layout.directory("sbx-once").work / "runs").read_text() == "x"


async def test_end_of_a_worker_that_ended_at_once_is_reported(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker's end is reported also if it has ended before the spawner reads who claimed the run."""
    spawn_and_claim = WorkerStarter.spawn_and_claim

    async def and_end(self: WorkerStarter, place: Any, run: Any, start: Any) -> None:
        await spawn_and_claim(self, place, run, start)
        await eventually(run.exit.exists)
        claimed = shim.read_claim(run)
        assert claimed
        assert await process_signals.wait_ended(claimed)

    monkeypatch.setattr(WorkerStarter, "spawn_and_claim", and_end)
    runtime = await open_process("pass", "none")
    ended = log_lines(runtime)
    await runtime.create(plan_for("sbx-short"))
    await eventually(lambda: ended)
    assert ended == ["sbx-short"]


@both
async def test_stop_ends_every_process(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """Workers that ignore SIGTERM, daemons in their own sessions, and processes with an empty environment end."""
    runtime = await open_process(STUBBORN, isolation)
    await runtime.create(plan_for("sbx-stop"))
    await up(eventually, runtime, "sbx-stop")
    members = runtime.termination.members(runtime.layout.directory("sbx-stop"))
    assert len(members) >= 3
    found = [process for pid in members if (process := processes.find(pid))]
    await runtime.stop("sbx-stop", 0.1)
    assert not [process for process in found if process.alive()]
    seen = await end(eventually, runtime, "sbx-stop")
    assert seen.end
    assert seen.end.code == 128 + signal.SIGKILL


@both
async def test_stop_ends_daemons_without_control_groups(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """Without control groups a daemon in its own session is found nevertheless."""
    runtime = await open_process(STUBBORN.replace("no-clear", "task"), isolation, use_groups=False)
    assert runtime.capabilities.memory == "rlimit"
    await runtime.create(plan_for("sbx-runaway"))
    await up(eventually, runtime, "sbx-runaway")
    members = runtime.termination.members(runtime.layout.directory("sbx-runaway"))
    found = [process for pid in members if (process := processes.find(pid))]
    assert len(found) >= 2
    await runtime.stop("sbx-runaway", 0.1)
    assert not [process for process in found if process.alive()]


@both
async def test_sigterm_lets_the_worker_choose_its_exit_status(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """SIGTERM reaches the worker, and its exit status is known."""
    runtime = await open_process(f"import signal, sys; signal.signal(15, lambda *_: sys.exit(3)); {SLEEP}", isolation)
    await runtime.create(plan_for("sbx-polite"))
    await up(eventually, runtime, "sbx-polite")
    await runtime.stop("sbx-polite", 20)
    seen = await end(eventually, runtime, "sbx-polite")
    assert seen.end
    assert seen.end.code == 3


@both
async def test_daemons_do_not_survive_into_a_recovery(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """A recovery starts in the same directory, with `--recover`, after all processes of the dead worker are ended."""
    code = (
        "import os, signal, sys, pathlib, json\n"
        "if '--recover' in sys.argv:\n"
        "    pathlib.Path('report').write_text(json.dumps(sorted(os.listdir('.'))))\n"
        "    sys.exit(0)\n"
        "if os.fork() == 0:\n"
        "    os.setsid(); signal.pause()\n"
        "pathlib.Path('up').touch()\n"
        "signal.pause()\n"
    )
    runtime = await open_process(code, isolation)
    await runtime.create(plan_for("sbx-again"))
    await up(eventually, runtime, "sbx-again")
    place = runtime.layout.directory("sbx-again")
    left = [process for pid in runtime.termination.members(place) if (process := processes.find(pid))]
    claim = shim.read_claim(place.runs()[0])
    assert claim
    claim.signal(signal.SIGKILL)
    seen = await end(eventually, runtime, "sbx-again")
    assert seen.end
    assert seen.end.code is None
    await runtime.recover(plan_for("sbx-again"))
    await eventually((place.work / "report").exists)
    assert not [process for process in left if process.alive()]
    seen = await end(eventually, runtime, "sbx-again")
    assert seen.runs == 2
    assert seen.end
    assert seen.end.drained


@both
async def test_later_spawner_adopts_living_sandboxes(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """A runtime opened later knows the living sandboxes, is notified of their end, and reads the exit status."""
    first = await open_process(SLEEP, isolation)
    await first.create(plan_for("sbx-adopted"))
    await up(eventually, first, "sbx-adopted")
    await first.close()
    second = await open_process(SLEEP, isolation)
    ended = log_lines(second)
    assert [seen.alive for seen in await second.find_all()] == [True]
    await second.create(plan_for("sbx-adopted"))
    await second.stop("sbx-adopted", 5)
    await eventually(lambda: ended)
    seen = await end(eventually, second, "sbx-adopted")
    assert seen.runs == 1
    assert seen.end
    assert seen.end.code == 128 + signal.SIGTERM


async def test_only_one_of_two_shims_runs(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A shim whose run is claimed exits without starting anything."""
    runtime = await open_process(SLEEP)
    plan = plan_for("sbx-twice")
    await runtime.create(plan)
    await up(eventually, runtime, "sbx-twice")
    place = runtime.layout.directory("sbx-twice")
    pid = runtime.worker_starter.spawn(
        place, place.runs()[0], runtime.worker_starter.cold_start_parameters(place, plan)
    )
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == shim.CLAIMED_BY_ANOTHER


@both
async def test_remove_leaves_nothing(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, isolation: str
) -> None:
    """After removal there is no process, no directory and no control group; a second removal does no harm."""
    runtime = await open_process(SLEEP, isolation)
    await runtime.create(plan_for("sbx-gone"))
    await up(eventually, runtime, "sbx-gone")
    place = runtime.layout.directory("sbx-gone")
    (place.work / "locked").mkdir(mode=0o000)
    await runtime.remove("sbx-gone")
    await runtime.remove("sbx-gone")
    assert not place.exists()
    assert not any(folder.exists() for folder in runtime.groups.directories("sbx-gone"))
    assert await runtime.find_all() == []


async def test_recovery_of_an_unknown_sandbox_is_refused(open_process: Open, plan_for: PlanFor) -> None:
    """The error is typed, and nothing is started."""
    runtime = await open_process(SLEEP)
    with pytest.raises(RuntimeFailedError, match="sandbox sbx-no does not exist"):
        await runtime.recover(plan_for("sbx-no"))


async def test_missing_bubblewrap_is_refused_where_required(
    open_process: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without bubblewrap no sandbox starts with `bubblewrap` or `auto`; with `weak` it starts, with a warning."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("spawner.runtimes.bubblewrap.bwrap_path", lambda: broken)
    with pytest.raises(RuntimeFailedError, match="No permissions to create new namespace"):
        await open_process(SLEEP, "bubblewrap")
    assert (await open_process(SLEEP, "auto")).refusal
    assert (await open_process(SLEEP, "weak")).capabilities.isolation == "none"
