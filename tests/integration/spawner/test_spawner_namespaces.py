"""Attacks that create or enter namespaces, run as an agent. Until then each mechanism was tested alone.

Invariant: no process in a sandbox creates a user namespace or enters one of another process, while either the system
call filter or bubblewrap's limit is in force.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from spawner.runtimes import bubblewrap
from spawner.runtimes.contract import SandboxPlan
from spawner.runtimes.process import ProcessRuntime
from tests.integration.spawner.boxed import WORKER, attack, with_namespaces

Open = Callable[..., Awaitable[ProcessRuntime]]
Eventually = Callable[..., Awaitable[Any]]
PlanFor = Callable[..., SandboxPlan]

_NAMESPACES = """
x86 = platform.machine() == 'x86_64'
unshare, setns, clone, NEWUSER = *((272, 308, 56) if x86 else (97, 268, 220)), 0x10000000
def alone(*calls):  # in a process of its own: the last call's result
    out, into = os.pipe()
    if os.fork() == 0:
        results = [call(*words) for words in calls]
        os.write(into, results[-1].encode().ljust(16)); os._exit(0)
    return os.read(out, 16).decode().strip()
ready, told = os.pipe()
other = os.fork()
if other == 0:  # a process whose namespaces are to be entered: its own ones, where it can have some
    call(unshare, NEWUSER | 0x40020000); os.write(told, b'1'); signal.pause()
os.read(ready, 1)
user, net, mnt = (os.open(f'/proc/{other}/ns/{name}', os.O_RDONLY) for name in ('user', 'net', 'mnt'))
print(json.dumps({
    'unshare': alone((unshare, NEWUSER)), 'with mounts': alone((unshare, NEWUSER | 0x20000)),
    'clone': alone((clone, NEWUSER | 17, 0, 0, 0, 0)),
    'clone3': alone((435, (ctypes.c_uint64 * 11)(NEWUSER, 0, 0, 0, 17), 88)),
    'network': alone((setns, user, 0), (setns, net, 0)), 'mounts': alone((setns, user, 0), (setns, mnt, 0)),
    'time': alone((unshare, 0x80)), 'setns': alone((setns, -1, 0)),
}))
os.kill(other, 9)
"""
_MADE = ("unshare", "with mounts", "clone", "clone3")
_ENTERED = ("network", "mounts")


def _each(names: Sequence[str], result: str) -> dict[str, str]:
    return dict.fromkeys(names, result)


@pytest.mark.parametrize(
    ("filtered", "limited", "expected"),
    [
        pytest.param(
            filtered, limited, _each(_MADE, made) | _each(_ENTERED, entered) | {"time": "EPERM"} | more, id=name
        )
        for name, filtered, limited, made, entered, more in (
            ("both", True, True, "EPERM", "EPERM", {"clone3": "ENOSYS", "setns": "EPERM"}),
            ("filter alone", True, False, "EPERM", "EPERM", {"clone3": "ENOSYS", "setns": "EPERM"}),
            ("limit alone", False, True, "ENOSPC", "EPERM", {"setns": "EBADF"}),
            ("neither", False, False, "done", "done", {"setns": "EBADF"}),
        )
    ],
)
async def test_agent_cannot_create_a_user_namespace(
    open_process: Open,
    plan_for: PlanFor,
    eventually: Eventually,
    monkeypatch: pytest.MonkeyPatch,
    filtered: bool,
    limited: bool,
    expected: dict[str, str],
) -> None:
    """An agent creates no user namespace by unshare, clone or clone3, and enters no other process's by setns.

    Each of two measures suffices. The filter and bubblewrap's limit differ in their errors: for an invalid descriptor
    the filter returns EPERM, the kernel EBADF. Without either the same attack succeeds.
    """
    runtime = await open_process(WORKER)
    assert runtime.launch is not None
    runtime.launch = replace(runtime.launch, filtered=filtered)
    if not limited:
        argv = bubblewrap.argv
        monkeypatch.setattr(
            bubblewrap, "argv", lambda *words, **more: [w for w in argv(*words, **more) if w != "--disable-userns"]
        )
    assert await attack(eventually, runtime, plan_for("sbx-spaces"), _NAMESPACES) == expected


async def test_profile_can_permit_user_namespaces(
    open_process: Open, plan_for: PlanFor, eventually: Eventually
) -> None:
    """A profile permits user namespaces, as Chromium and rootless Podman need; keyrings and bpf stay refused."""
    script = """
line = 'mount -t tmpfs none /tmp && id -u'
done = subprocess.run(['unshare', '-Urm', 'sh', '-c', line], capture_output=True, text=True)
x86 = platform.machine() == 'x86_64'
print(json.dumps([done.stdout, done.stderr, call(250 if x86 else 219, 0, -3, 0), call(321 if x86 else 280, 0, 0, 0)]))
"""
    out, err, keys, programs = await attack(
        eventually, await open_process(WORKER), with_namespaces(plan_for("sbx-chromium")), script
    )
    assert (out, err) == ("0\n", "")
    assert (keys, programs) == ("EPERM", "EPERM")
