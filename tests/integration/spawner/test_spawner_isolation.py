"""What a sandbox can see and do of the host and of its neighbours: nothing."""

import json
import os
import venv
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from spawner.runtimes import bubblewrap
from spawner.runtimes.bubblewrap import INSIDE
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

PRELUDE = """
import json, os, pathlib, resource, signal, subprocess, sys
def tell(**found):
    pathlib.Path('report.part').write_text(json.dumps(found)); os.rename('report.part', 'report')
"""
LIMITS = ("RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_CORE")
NEIGHBOUR = """
if os.environ['SANDHERD_SANDBOX_ID'] == 'sbx-neighbour':
    pathlib.Path('up').touch(); signal.pause()
"""


async def found_inside(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan) -> Any:
    sandbox = plan.sandbox
    await runtime.create(plan)
    place = runtime.layout.directory(sandbox)

    async def look() -> bool:
        seen = await runtime.observe(sandbox)
        return (place.work / "report").exists() or bool(seen and not seen.alive)

    await eventually(look)
    log = place.runs()[-1].log.read_text()
    assert (place.work / "report").exists(), log
    return json.loads((place.work / "report").read_text())


async def test_neighbour_is_invisible(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, tmp_path: Path
) -> None:
    """A sandbox sees and signals no process, environment or file of another sandbox, of the stack or of the spawner."""
    outside = tmp_path / "outside"
    outside.write_text("a secret of the host")
    code = f"""{PRELUDE}{NEIGHBOUR}
pids = [int(name) for name in os.listdir('/proc') if name.isdecimal()]
def environ(pid):
    try: return pathlib.Path('/proc', str(pid), 'environ').read_bytes()
    except PermissionError: return b''
env = b''.join(environ(pid) for pid in pids if pid > 1)
def killable(pid):
    try: os.kill(pid, 0); return True
    except ProcessLookupError: return False
tell(pids=pids, neighbour=b'sbx-neighbour' in env, outside=os.path.exists({str(outside)!r}),
     stack=os.path.exists({str(tmp_path / "stack")!r}), root=sorted(os.listdir('/')), uid=os.getuid(),
     home=os.path.exists({str(Path.home() / ".bashrc")!r}) or os.path.exists('/home'),
     sandbox=sorted(os.listdir('/sandbox')),
     spawner=killable({os.getpid()}), state=sorted(os.listdir('/sandbox/state')), env=dict(os.environ))
"""
    runtime = await open_process(code)
    await runtime.create(plan_for("sbx-neighbour"))
    await eventually((runtime.layout.directory("sbx-neighbour").work / "up").exists)
    found = await found_inside(eventually, runtime, plan_for("sbx-one"))
    assert found["pids"] == [1, 2, 4, 5], "bubblewrap's, the stub, the holder and the worker; 3 has ended"
    assert not any(found[name] for name in ("neighbour", "outside", "stack", "home", "spawner"))
    assert not {"srv", "var", "boot", "mnt", "opt", "sys"} & set(found["root"])
    assert found["uid"] == 1000
    assert {"work", "state", "home"} <= set(found["sandbox"]) <= {"work", "state", "home", "previous", "cgroup"}
    assert found["state"] == ["joiner.creds", "task.json"]
    assert "secret" not in json.dumps(found["env"])
    expected = {"PATH", "HOME", "LANG", "USER", "NATS_URL", "HEARTBEAT_INTERVAL", "PWD", "OLDPWD", "LC_CTYPE"}
    assert not [name for name in found["env"] if name not in expected and not name.startswith("SANDHERD_")]


async def test_toolchains_are_usable_and_read_only(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, tmp_path: Path
) -> None:
    """A toolchain that is installed while the spawner runs is in the next sandbox, with its own interpreter."""
    toolchains = tmp_path / "stack" / "toolchains"
    code = f"""{PRELUDE}
python = os.environ['SANDHERD_TOOLCHAINS'] + '/acp/bin/python'
asked = [python, '-c', 'import sys, sdk; print(sys.prefix, sdk.name)']
said = subprocess.run(asked, capture_output=True, text=True)
try: pathlib.Path(python).unlink(); changed = True
except OSError: changed = False
tell(said=said.stdout.split(), trouble=said.stderr, changed=changed)
"""
    runtime = await open_process(code, toolchains=toolchains)
    venv.create(toolchains / "acp", symlinks=True, with_pip=False)
    (packages,) = (toolchains / "acp" / "lib").glob("python*/site-packages")
    (packages / "sdk.py").write_text("name = 'an-sdk'")
    found = await found_inside(eventually, runtime, plan_for("sbx-one"))
    assert (found["said"], found["trouble"]) == (["/sandbox/toolchains/acp", "an-sdk"], "")
    assert not found["changed"]


async def test_only_own_directories_are_writable(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """Everything except work, state, home and temporary files is read-only; so are the kernel's switches in /proc."""
    code = f"""{PRELUDE}
def writable(path):
    try: fd = os.open(path, os.O_WRONLY); os.close(fd); return True
    except OSError: return False
def makes(folder):
    try: p = pathlib.Path(folder, 'try'); p.write_text('x'); p.unlink(); return True
    except OSError: return False
kernel = []
for base, folders, files in os.walk('/proc'):
    folders[:] = [f for f in folders if not (base == '/proc' and (f.isdecimal() or f in ('self', 'thread-self')))]
    kernel += [p for p in (os.path.join(base, f) for f in files) if os.access(p, os.W_OK) and writable(p)]
def says(path):
    try: return bool(open(path, 'rb').read(1))
    except OSError: return False
masked = [p for p in ('/proc/kcore', '/proc/keys', '/proc/vmallocinfo') if says(p)]
places = ['/', '/usr', '/etc', '/proc', '/sandbox', sys.prefix, sys.base_prefix, '/sandbox/cgroup', '/tmp',
          '{INSIDE}/work', '{INSIDE}/state', '{INSIDE}/home', '/run']
status = pathlib.Path('/proc/self/status').read_text()
tell(kernel=kernel, masked=masked, places=[p for p in places if makes(p)],
     caps=[l.split()[1] for l in status.splitlines() if l.startswith('Cap')],
     nnp='NoNewPrivs:\\t1' in status, hostname=os.uname().nodename)
"""
    runtime = await open_process(code)
    found = await found_inside(eventually, runtime, plan_for("sbx-writes"))
    assert found["kernel"] == []
    assert found["masked"] == []
    assert found["places"] == ["/tmp", *(f"{INSIDE}/{name}" for name in ("work", "state", "home")), "/run"]
    assert set(found["caps"]) == {"0000000000000000"}
    assert found["nnp"]
    assert found["hostname"] == "sbx-writes"


async def test_secrets_are_in_no_command_line(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """The joiner's credential is a file of mode 0600, and is in no argument and no environment."""
    runtime = await open_process(f"{PRELUDE}pathlib.Path('up').touch(); signal.pause()")
    await runtime.create(plan_for("sbx-quiet"))
    place = runtime.layout.directory("sbx-quiet")
    await eventually((place.work / "up").exists)
    for pid in runtime.termination.members(place):
        for name in ("cmdline", "environ"):
            assert b"the joiner's secret" not in Path("/proc", str(pid), name).read_bytes()
    assert place.joiner.read_text() == "the joiner's secret"
    assert place.joiner.stat().st_mode & 0o777 == 0o600
    assert place.folder.stat().st_mode & 0o777 == 0o700


async def test_paths_below_a_visible_root_are_hidden(
    open_process: Open, plan_for: PlanFor, eventually: Eventually, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hidden path below a visible root is empty inside, such as a stack's home inside the interpreter's tree."""
    roots = bubblewrap.python_roots
    monkeypatch.setattr(bubblewrap, "python_roots", lambda *given: (*roots(*given), str(tmp_path)))
    tmp_path.chmod(0o755)  # as in every interpreter's tree: a sandbox's own uid must be able to enter
    (tmp_path / "stack").mkdir()
    (tmp_path / "stack" / "secret").write_text("x")
    (tmp_path / "open").write_text("x")
    runtime = await open_process(
        f"{PRELUDE}tell(stack=os.listdir({str(tmp_path / 'stack')!r}), open=os.path.exists({str(tmp_path / 'open')!r}))"
    )
    assert await found_inside(eventually, runtime, plan_for("sbx-hidden")) == {"stack": [], "open": True}


async def test_open_files_and_cpu_time_are_limited(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Each process has the limits on open files and CPU time that its task was given."""
    code = f"{PRELUDE}tell(**{{name: resource.getrlimit(getattr(resource, name)) for name in {LIMITS}}})"
    runtime = await open_process(code)
    found = await found_inside(eventually, runtime, plan_for("sbx-limits", open_files=99, cpu_seconds=12))
    assert found == {"RLIMIT_NOFILE": [99, 99], "RLIMIT_CPU": [12, 12], "RLIMIT_CORE": [0, 0]}


async def test_memory_is_limited_and_an_oom_kill_is_reported(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """With a control group the kernel ends a process that uses too much memory, and the sandbox's end states it."""
    runtime = await open_process("x = bytearray(300 * 1024 * 1024)")
    assert runtime.capabilities.memory == "cgroup", "this host lets us make no control groups: run the tests as root"
    await runtime.create(plan_for("sbx-greedy", memory_mb=128))

    async def ended() -> Any:
        seen = await runtime.observe("sbx-greedy")
        return seen.end if seen and not seen.alive else None

    ending = await eventually(ended)
    assert ending.out_of_memory
    assert not ending.drained


async def test_recovery_knows_the_oom_kill_of_its_worker(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A recovery ends the attempt with `out_of_memory`, which is not retried, also with the smallest limit."""
    recovery = "if '--recover' in sys.argv: tell(memory=os.environ.get('SANDHERD_LOST_FOR_MEMORY')); sys.exit(0)"
    runtime = await open_process(f"{PRELUDE}\n{recovery}\nx = bytearray(300 * 1024 * 1024)")
    plan = plan_for("sbx-least", memory_mb=64)
    await runtime.create(plan)

    async def ended() -> bool:
        seen = await runtime.observe(plan.sandbox)
        return bool(seen and not seen.alive)

    await eventually(ended)
    await runtime.recover(plan)
    report = runtime.layout.directory(plan.sandbox).work / "report"
    await eventually(report.exists)
    assert json.loads(report.read_text()) == {"memory": "1"}


async def test_memory_is_limited_without_a_control_group(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """Without a control group each process has its own memory limit."""
    code = f"{PRELUDE}\ntry: x = bytearray(300 << 20); tell(refused=False)\nexcept MemoryError: tell(refused=True)"
    runtime = await open_process(code, use_groups=False)
    assert (await found_inside(eventually, runtime, plan_for("sbx-greedy", memory_mb=128)))["refused"]


async def test_number_of_processes_is_limited(open_process: Open, plan_for: PlanFor, eventually: Eventually) -> None:
    """A fork bomb stops at the sandbox's limit and takes nothing from the host."""
    code = f"""{PRELUDE}
made = 0
try:
    for _ in range(100):
        if os.fork() == 0: signal.pause()
        made += 1
except OSError: pass
tell(made=made)
"""
    runtime = await open_process(code)
    assert runtime.capabilities.processes != "none", "as root without control groups the kernel counts no processes"
    assert (await found_inside(eventually, runtime, plan_for("sbx-bomb", processes=20)))["made"] < 20
