"""Commands and files in a sandbox of the process runtime do not escape it."""

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandherd import processes
from spawner.runtimes.commands import Command, CommandResult, File
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault, SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests import polling
from tests.late_commands import ran_out_of_time

Open = Callable[..., Awaitable[ProcessRuntime]]
PlanFor = Callable[..., SandboxPlan]
SLEEP = "import pathlib, signal; pathlib.Path('up').touch(); signal.pause()"
UNIT = "sbx-entered"

both = pytest.mark.parametrize("isolation", ["bubblewrap", "none"])


async def sh(runtime: ProcessRuntime, script: str, **more: Any) -> CommandResult:
    return await runtime.run(UNIT, Command(argv=["/bin/sh", "-c", script], **more))


def members(runtime: ProcessRuntime) -> set[int]:
    return runtime.termination.members(runtime.layout.directory(UNIT))


async def members_at_start(runtime: ProcessRuntime) -> set[int]:
    """The processes of the worker, which begins once its sandbox can be entered."""
    await polling.eventually((runtime.layout.directory(UNIT).work / "up").exists)
    return members(runtime)


async def ended(runtime: ProcessRuntime, before: set[int], text: str = "") -> None:
    """Wait until only the earlier processes are left; some of them, which started a command, may end."""
    await polling.eventually(lambda: members(runtime) <= before, f"no further process is left {text}")


@both
async def test_escaped_processes_end_at_the_time_limit(open_process: Open, plan_for: PlanFor, isolation: str) -> None:
    """Daemons in their own sessions end at the time limit, too; processes of the worker from before continue."""
    runtime = await open_process(SLEEP, isolation)
    await runtime.create(plan_for(UNIT))
    before = await members_at_start(runtime)
    moved_script = """
    rm -f deep bare
    setsid sh -c 'setsid sh -c "touch deep; exec sleep 4711" & sleep 4711' &
    (setsid env -i sh -c "touch bare; exec sleep 4711" &)
    until [ -e deep ] && [ -e bare ]; do sleep 0.05; done
    echo begun; sleep 4711
    """
    ran = await ran_out_of_time(lambda seconds: sh(runtime, moved_script, seconds=seconds), lambda ran: ran.out)
    assert (ran.timed_out, ran.code, ran.out) == (True, None, b"begun\n")
    await ended(runtime, before)


@both
async def test_background_processes_of_a_command_end_with_the_sandbox(
    open_process: Open, plan_for: PlanFor, eventually: Any, isolation: str
) -> None:
    """A background process is in the sandbox's groups and does not delay the command's result."""
    runtime = await open_process(SLEEP, isolation)
    await runtime.create(plan_for(UNIT))
    ran = await sh(runtime, "setsid sleep 4711 & echo left", seconds=60)
    assert (ran.code, ran.out) == (0, b"left\n")
    await eventually(lambda: "sleep" in map(_name, members(runtime)))  # it is another program until it executes this
    left = [found for pid in members(runtime) if (found := processes.find(pid))]
    await runtime.stop(UNIT, 0.1)
    await eventually(lambda: not [process for process in left if process.alive()])  # the kernel clears up behind us


def _name(pid: int) -> str:
    """The name of a process; empty if it has just ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


async def test_cancelled_request_ends_its_command(open_process: Open, plan_for: PlanFor) -> None:
    """No process remains after a cancelled request."""
    runtime = await open_process(SLEEP)
    await runtime.create(plan_for(UNIT))
    before = await members_at_start(runtime)
    running = asyncio.create_task(sh(runtime, "touch begun; exec sleep 4711"))
    while await runtime.read(UNIT, "work/begun", 1) is None:
        await asyncio.sleep(0.01)  # another process: it sends no notification
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await ended(runtime, before)


async def test_entered_command_is_isolated_like_the_agent(open_process: Open, plan_for: PlanFor) -> None:
    """An entered command has the namespaces, limits, permissions and root of the worker; no process can inspect it."""
    runtime = await open_process(SLEEP)
    await runtime.create(plan_for(UNIT, open_files=321, processes=99))
    names = ("user", "mnt", "pid", "ipc", "uts", "cgroup")
    mine = await sh(runtime, "for n in user mnt pid ipc uts cgroup; do readlink /proc/self/ns/$n; done")
    worker = await runtime.termination.wait_for_worker(runtime.layout.directory(UNIT))
    assert mine.out.decode().split() == [str(Path("/proc", str(worker.pid), "ns", name).readlink()) for name in names]
    prying = "readlink /proc/$PPID/exe /proc/$PPID/fd/*; cat /proc/$PPID/maps"
    result = await sh(runtime, f"ulimit -n; ulimit -c; id -u; ls -d /root/* /home/* 2>/dev/null; {prying}")
    assert result.out == b"321\n0\n1000\n"
    assert b"Permission denied" in result.err
    rights = (await sh(runtime, "grep -E 'CapEff|CapPrm|CapBnd|NoNewPrivs' /proc/self/status")).out.split()
    assert rights[1::2] == [b"0" * 16] * 3 + [b"1"]


async def test_planted_link_leads_no_file_out(open_process: Open, plan_for: PlanFor, tmp_path: Any) -> None:
    """A link at the end of a path or on it is refused for writing and reading; a pipe is not read either."""
    runtime = await open_process(SLEEP)
    await runtime.create(plan_for(UNIT))
    (tmp_path / "host").mkdir()
    (tmp_path / "host" / "secret").write_text("the host's")
    work = runtime.layout.directory(UNIT).work
    (work / "folder").symlink_to(tmp_path / "host")
    (work / "file").symlink_to(tmp_path / "host" / "secret")
    os.mkfifo(work / "pipe")
    for path in ("work/folder/secret", "work/file", "work/pipe", "work/file/x"):
        with pytest.raises(RuntimeFailedError) as caught:
            await runtime.read(UNIT, path, 1000)
        assert caught.value.fault is RuntimeFault.REFUSED, path
    with pytest.raises(RuntimeFailedError) as caught:
        await runtime.write_files(UNIT, [File("work/folder/secret", b"the agent's")])
    assert caught.value.fault is RuntimeFault.REFUSED
    await runtime.write_files(UNIT, [File("work/file", b"ours")])  # replaces the link
    assert (await sh(runtime, "cat file")).out == b"ours"
    assert (tmp_path / "host" / "secret").read_text() == "the host's"
    assert [entry.name for entry in (tmp_path / "host").iterdir()] == ["secret"]


@pytest.mark.parametrize("moments", [8, pytest.param(40, marks=pytest.mark.long)])
@both
async def test_time_limit_leaves_no_process_at_any_moment(
    open_process: Open, plan_for: PlanFor, isolation: str, moments: int
) -> None:
    """No process remains, whether the limit is reached while the sandbox is entered or while the command forks."""
    runtime = await open_process(SLEEP, isolation)
    await runtime.create(plan_for(UNIT))
    before = await members_at_start(runtime)
    storm = "while :; do (setsid sh -c '(sleep 4711 &)' &); sleep 0.01; done"
    for step in range(moments):
        seconds = 0.2 * step / moments
        ran = await sh(runtime, storm, seconds=seconds)
        assert ran.timed_out
        await ended(runtime, before, f"after {seconds} s")


async def test_process_whose_first_thread_has_ended_is_ended(
    open_process: Open, plan_for: PlanFor, eventually: Any
) -> None:
    """A process whose first thread has ended is ended: the kernel shows it as a zombie, but other threads run."""
    runtime = await open_process(SLEEP, "none")
    await runtime.create(plan_for(UNIT))
    thread = "import ctypes, threading, time\nthreading.Thread(target=time.sleep, args=(4711,)).start()"
    ends = f"{thread}\nprint('begun', flush=True)\nctypes.CDLL(None).pthread_exit(None)"
    ran = await sh(runtime, f'setsid python3 -c "{ends}" >begun & until [ -s begun ]; do sleep 0.05; done; echo $!')
    pid = ran.out.decode().strip()
    await eventually(lambda: _states(pid) == ["Z", "S"], lambda: f"{pid}: {_states(pid)}")
    await runtime.stop(UNIT, 0.1)
    assert set(_states(pid)) <= {"Z"}


def _states(pid: str) -> list[str]:
    """The states of a process's threads, the first one first."""
    found = []
    for thread in sorted(Path("/proc", pid, "task").glob("*"), key=lambda path: path.name != pid):
        with suppress(OSError):  # it has just ended
            found.append((thread / "stat").read_text().rpartition(")")[2].split()[0])
    return found


async def test_process_just_started_by_a_shim_is_ended(open_process: Open, plan_for: PlanFor) -> None:
    """A shim's process without a pid namespace is ended: only its session leads to it, as the shim has ended."""
    runtime = await open_process(SLEEP)
    await runtime.create(plan_for(UNIT))
    await runtime.stop(UNIT, 0.1)
    script = "echo $(cat /proc/sys/kernel/random/boot_id) $(cat /proc/$$/stat); sleep 4711 >&- & "
    shim = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=subprocess.PIPE, start_new_session=True)
    claim, _ = await shim.communicate()
    (left,) = processes.in_session(shim.pid)
    (run,) = runtime.layout.directory(UNIT).runs()
    run.claim.write_bytes(claim)
    await runtime.remove(UNIT)
    assert processes.is_zombie(left)
