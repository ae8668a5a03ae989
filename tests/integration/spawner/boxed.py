"""Runs an attack in a real sandbox; a stub worker starts it as the real worker starts agents."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime

Eventually = Callable[..., Awaitable[Any]]

WORKER = """
import json, os, pathlib, signal, subprocess, sys
from sandherd_worker import confinement
confinement.hide_from_agents()
script = pathlib.Path('/sandbox/home/attack.py')
said = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, start_new_session=True,
                      preexec_fn=confinement.enter)
part = pathlib.Path('/sandbox/state/report.part')
part.write_text(json.dumps({'code': said.returncode, 'out': said.stdout, 'err': said.stderr}))
part.rename('/sandbox/state/report')
signal.pause()
"""
ATTACK = """
import ctypes, errno, json, os, pathlib, platform, resource, signal, socket, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    ctypes.set_errno(0)
    done = libc.syscall(*words)
    return 'done' if done >= 0 else errno.errorcode[ctypes.get_errno()]
def tried(action):
    try: action(); return 'done'
    except OSError as error: return errno.errorcode[error.errno]
"""


async def attack(eventually: Eventually, runtime: ProcessRuntime, plan: SandboxPlan, script: str) -> Any:
    """Run a script as the agent of a new sandbox. Returns the JSON that it prints; its worker must still live."""
    place = runtime.layout.directory(plan.sandbox)
    await _prepare(runtime, plan, ATTACK + script)
    await runtime.create(plan)

    async def reported() -> bool:
        seen = await runtime.observe(plan.sandbox)
        return (place.state / "report").exists() or bool(seen and not seen.alive)

    await eventually(reported)
    assert (place.state / "report").exists(), place.runs()[-1].log.read_text()
    report = json.loads((place.state / "report").read_text())
    assert report["code"] == 0, report["err"]
    seen = await runtime.observe(plan.sandbox)
    assert seen is not None
    assert seen.alive
    return json.loads(report["out"])


async def _prepare(runtime: ProcessRuntime, plan: SandboxPlan, script: str) -> None:
    place = runtime.layout.directory(plan.sandbox)
    place.make()
    (place.home / "attack.py").write_text(script)


def with_namespaces(plan: SandboxPlan) -> SandboxPlan:
    """The plan with a profile that allows user namespaces."""
    return replace(plan, user_namespaces=True)
