"""Attacks of an agent on its worker, its logs and its spawner's keys; and ordinary tools that must still work.

Invariant: the processes that run an agent are out of its reach, though they are in the same sandbox.
"""

import json
import marshal
import os
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from spawner.runtimes import isolation_gaps, launcher, shim
from spawner.runtimes.commands import Command
from spawner.runtimes.contract import RuntimeFailedError, SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import ATTACK, WORKER, attack

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]
REFUSED = {"EPERM", "EACCES", "ESRCH"}
scoped = pytest.mark.skipif(
    isolation_gaps.landlock_version() < 6, reason="this kernel can't keep signals in (Linux 6.12)"
)

ON_WORKER = """
x86 = platform.machine() == 'x86_64'
n = {k: v[0 if x86 else 1] for k, v in dict(tgkill=(234, 131), tkill=(200, 130), ptrace=(101, 117), read=(310, 270),
     write=(311, 271), pidfd=(434, 434), send=(424, 424), getfd=(438, 438), queue=(129, 138)).items()}
found = {}
for pid in (1, 2):
    threads = [int(name) for name in os.listdir(f'/proc/{pid}/task')]
    found[f'kill {pid}'] = tried(lambda: os.kill(pid, signal.SIGTERM)) if pid == 2 else tried(lambda: os.kill(pid, 0))
    for thread in threads:
        found[f'tgkill {pid} {thread}'] = call(n['tgkill'], pid, thread, 9 if pid == 2 else 0)
        found[f'tkill {pid} {thread}'] = call(n['tkill'], thread, 9 if pid == 2 else 0)
        found[f'attach {pid} {thread}'] = call(n['ptrace'], 16, thread, 0, 0)
        found[f'seize {pid} {thread}'] = call(n['ptrace'], 0x4206, thread, 0, 0)
    if pid == 2: found['group'] = tried(lambda: os.killpg(pid, signal.SIGTERM))
    descriptor = os.pidfd_open(pid)
    found[f'pidfd {pid}'] = call(n['send'], descriptor, 9 if pid == 2 else 0, 0, 0)
    found[f'getfd {pid}'] = call(n['getfd'], descriptor, 2, 0)
    for name in ('mem', 'environ', 'maps', 'auxv'):
        found[f'{name} {pid}'] = tried(lambda: open(f'/proc/{pid}/{name}', 'rb').read(1))
    for name in ('fd', 'map_files', 'fdinfo'):
        found[f'{name} {pid}'] = tried(lambda: [os.readlink(f'/proc/{pid}/{name}/{one}')
                                                for one in os.listdir(f'/proc/{pid}/{name}') or ['0']])
    found[f'root {pid}'] = tried(lambda: os.listdir(f'/proc/{pid}/root/'))
    space = (ctypes.c_uint64 * 2)(id(found), 8)
    found[f'memory {pid}'] = call(n['read'], pid, space, 1, space, 1, 0)
    found[f'into memory {pid}'] = call(n['write'], pid, space, 1, space, 1, 0)
"""


def verdicts(found: dict[str, str]) -> dict[str, str]:
    return {name: how for name, how in found.items() if how not in REFUSED}


@scoped
async def test_agent_can_neither_trace_nor_signal_its_worker(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """An agent reaches neither its worker nor the first process: by no call, descriptor or file below `/proc`."""
    script = f"{ON_WORKER}\nprint(json.dumps(found))"
    found = await attack(eventually, await open_process(WORKER), plan_for("sbx-worker"), script)
    assert verdicts(found) == {}


@scoped
async def test_entered_command_can_neither_trace_nor_signal_the_worker(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A command that the spawner runs beside the worker can neither trace nor signal the worker."""
    runtime = await open_process(WORKER)
    await attack(eventually, runtime, plan_for("sbx-entered"), "print(1)")
    script = f"{ATTACK}{ON_WORKER}\nprint(json.dumps(found))"
    ran = await runtime.run("sbx-entered", Command(argv=[sys.executable, "-c", script]))
    assert ran.code == 0, ran.err
    assert verdicts(json.loads(ran.out)) == {}
    seen = await runtime.observe("sbx-entered")
    assert seen is not None
    assert seen.alive


@scoped
async def test_signal_to_all_does_not_reach_the_worker(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """`kill -1` ends only the agent's own processes: the worker reports their end, and lives."""
    script = """
child = subprocess.Popen(['sleep', '600'])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.kill(-1, signal.SIGTERM)
print(json.dumps(child.wait()))
"""
    assert await attack(eventually, await open_process(WORKER), plan_for("sbx-all"), script) == -15


async def test_entered_command_is_filtered(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """An entered command has the system call filter, no new privileges and no new namespaces."""
    runtime = await open_process(WORKER)
    await attack(eventually, runtime, plan_for("sbx-entered"), "print(1)")
    ran = await runtime.run(
        "sbx-entered", Command(argv=["sh", "-c", "grep -E 'Seccomp:|NoNew' /proc/self/status; unshare -U true"])
    )
    assert ran.out.split() == [b"NoNewPrivs:", b"1", b"Seccomp:", b"2"]
    assert ran.code != 0


async def test_agent_cannot_write_to_its_workers_log(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """No descriptor of the worker or the first process leads to the log, which is outside of the sandbox."""
    runtime = await open_process("import sys; print('the worker speaks', file=sys.stderr, flush=True)\n" + WORKER)
    script = """
found = {}
for pid in (1, 2):
    for number in (1, 2):
        path = f'/proc/{pid}/fd/{number}'
        found[f'append {path}'] = tried(lambda: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b'forged'))
        found[f'truncate {path}'] = tried(lambda: os.truncate(path, 0))
found['run'] = [p for p in ('/sandbox/run', '/run/log') if os.path.exists(p)]
print(json.dumps(found))
"""
    found = await attack(eventually, runtime, plan_for("sbx-log"), script)
    assert found.pop("run") == []
    assert set(found.values()) <= {"EPERM", "EACCES", "EINVAL"}, found
    log = runtime.layout.directory("sbx-log").runs()[-1].log
    assert log.read_text() == "the worker speaks\n"


async def test_log_has_a_size_limit(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A worker that writes more than its log's limit is neither blocked nor ended, and its exit status is known."""
    runtime = await open_process("import sys\nfor _ in range(64): sys.stderr.write('x' * 65536)\nsys.exit(5)")
    await runtime.create(plan_for("sbx-loud"))

    async def ended() -> Any:
        seen = await runtime.observe("sbx-loud")
        return seen.end if seen and not seen.alive else None

    assert (await eventually(ended)).code == 5
    assert runtime.layout.directory("sbx-loud").runs()[-1].log.stat().st_size == shim.LOG_BYTES


def test_session_keyring_of_the_spawner_is_not_inherited(tmp_path: Path) -> None:
    """A canary in the spawner's session keyring is visible to the launcher, but not to what it launches."""
    numbers = "(250, 248) if platform.machine() == 'x86_64' else (219, 217)"
    look = (
        "import ctypes, platform; libc = ctypes.CDLL(None, use_errno=True)\n"
        f"keyctl, add = {numbers}\n"
        "print(libc.syscall(keyctl, 10, -3, b'user', b'canary', 0) > 0, flush=True)\n"
    )
    launch = {
        "user": None, "stage": "", "mounts": [], "covers": [], "filter": b"",
        "argv": [sys.executable, "-I", "-c", look],
    }  # fmt: skip
    path = tmp_path / "launch"
    path.write_bytes(marshal.dumps(launch))
    begin = (
        f"import ctypes, os, platform, sys; libc = ctypes.CDLL(None, use_errno=True)\nkeyctl, add = {numbers}\n"
        "libc.syscall(keyctl, 1, None)\n"
        "assert libc.syscall(add, b'user', b'canary', b'KEYRING-CANARY', 14, -3) > 0\n"
        f"{look}"
        f"os.execv(sys.executable, [sys.executable, '-I', '-S', {launcher.__file__!r}, {str(path)!r}])"
    )
    result = subprocess.run([sys.executable, "-I", "-c", begin], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["True", "False"], result.stderr


TOOLS = {
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git log",
    "gcc": "echo 'int main(void){return 0;}' > m.c && printf 'm: m.c\\n\\tgcc -o m m.c\\n' > Makefile && make -s m",
    "node": "node -e \"require('child_process').execSync('true'); "
    "new (require('worker_threads').Worker)('1', {eval: true})\"",
    "gdb": "echo 'int main(void){return 7;}' > g.c && gcc -g -o g g.c && "
    "gdb -batch -ex 'break main' -ex run -ex 'print 41+1' ./g 2>&1 | grep -q '= 42'",
    "strace": "strace -f -o trace sh -c 'true & wait' && grep -q exited trace",
    "tar": "touch f && tar cf f.tar f && tar xpf f.tar",
}
PYTHON = """
import asyncio, concurrent.futures, multiprocessing, subprocess, tempfile, threading, venv
def square(x): return x * x
if __name__ == '__main__':
    assert multiprocessing.Pool(2).map(square, [2, 3]) == [4, 9]
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context('spawn')) as pool:
        assert pool.submit(square, 4).result() == 16
    async def main():
        child = await asyncio.create_subprocess_exec('echo', 'x', stdout=-1)
        assert (await child.communicate())[0] == b'x\\n'
        server = await asyncio.start_server(lambda r, w: w.close(), '127.0.0.1', 0)
        await asyncio.open_connection(*server.sockets[0].getsockname())
    asyncio.run(main())
    assert subprocess.run(['sh', '-c', 'exit 3']).returncode == 3
    print('fine')
"""


@pytest.mark.parametrize("tool", TOOLS)
async def test_everyday_tools_work(open_process: Open, plan_for: PlanFor, eventually: Eventually, tool: str) -> None:
    """Version control, compilers, and debuggers of one's own children work, if this host has them."""
    if shutil.which(tool, path="/usr/local/bin:/usr/bin:/bin") is None:
        pytest.skip(f"this host has no {tool}")
    script = f"""
done = subprocess.run(['sh', '-c', {TOOLS[tool]!r}], capture_output=True, text=True)
print(json.dumps([done.returncode, done.stdout + done.stderr]))
"""
    plan = plan_for("sbx-tools", memory_mb=1024)
    code, result = await attack(eventually, await open_process(WORKER), plan, script)
    assert code == 0, result


async def test_python_subprocess_apis_work(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Python's processes, process pools, asyncio subprocesses, and sockets work."""
    script = f"""
pathlib.Path('p.py').write_text({PYTHON!r})
done = subprocess.run([sys.executable, 'p.py'], capture_output=True, text=True)
print(json.dumps([done.stdout, done.stderr]))
"""
    plan = plan_for("sbx-python", memory_mb=1024)
    assert await attack(eventually, await open_process(WORKER), plan, script) == ["fine\n", ""]


async def test_host_without_isolation_refuses_sandboxes_unless_allowed(
    open_process: Open, plan_for: PlanFor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without bubblewrap `auto` refuses each sandbox, naming the setting; `weak` starts it, with a warning."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr("spawner.runtimes.bubblewrap.bwrap_path", lambda: broken)
    runtime = await open_process("import signal; signal.pause()", "auto")
    for requested in (runtime.create(plan_for("sbx-no")), runtime.create(plan_for("sbx-no"))):
        with pytest.raises(RuntimeFailedError, match="SANDHERD_ISOLATION=weak"):
            await requested
    assert await runtime.observe("sbx-no") is None
    weak = await open_process("import signal; signal.pause()", "weak")
    assert isolation_gaps.NO_ISOLATION in weak.capabilities.gaps
    with capture_logs() as lines:
        await weak.create(plan_for("sbx-weak"))
    assert "sandbox starts with weaker isolation" in [line["event"] for line in lines]
    await weak.remove("sbx-weak")


@pytest.mark.skipif(os.getuid() != 0, reason="only a spawner that is root has host uids to give away")
async def test_occupied_uid_range_is_refused(open_process: Open) -> None:
    """A uid range that contains an account of this host is refused; the error names both settings."""
    with pytest.raises(RuntimeFailedError, match="SANDHERD_SANDBOX_UID_FIRST"):
        await open_process("", "bubblewrap", uids=(1, 100))
