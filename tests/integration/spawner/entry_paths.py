"""The confinement of any process in a sandbox, however it started: reported by the process itself, and by the host."""

import json
import os
from pathlib import Path
from typing import Any, Final

from spawner.runtimes.bubblewrap import INSIDE

DENIED: Final = {"EPERM", "EACCES", "ENOSYS", "ENOSPC", "EINVAL"}
_CHECK: Final = """
import ctypes, errno, json, os, pathlib, platform, socket
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    ctypes.set_errno(0)
    return 'done' if libc.syscall(*words) >= 0 else errno.errorcode[ctypes.get_errno()]
def reach(family, host):
    try:
        with socket.socket(family) as one:
            one.settimeout(20); one.connect((host, {port})); return 'reached'
    except OSError as error:
        return type(error).__name__
status = dict(line.split(':', 1) for line in pathlib.Path('/proc/self/status').read_text().splitlines())
unshare, setns = {{'x86_64': (272, 308), 'aarch64': (97, 268)}}[platform.machine()]
pathlib.Path('{folder}/work/{mark}').touch()
print(json.dumps(dict(
    uid=os.getuid(), seccomp=status['Seccomp'].strip(), privileges=status['NoNewPrivs'].strip(),
    capabilities=[status[name].strip() for name in ('CapEff', 'CapPrm', 'CapBnd')],
    namespaces=[call(unshare, 0x10000000), call(unshare, 0x00020000), call(setns, 0, 0)],
    loopback=[reach(socket.AF_INET, '127.0.0.1'), reach(socket.AF_INET6, '::1')],
)))
"""


def check_code(mark: str, port: int) -> str:
    """Python code that prints what the process is and may do; it creates the file `mark`; `port` is the host's."""
    return _CHECK.format(mark=mark, port=port, folder=INSIDE)


def assert_confined(printed: str | bytes, work: Path, mark: str) -> None:
    """Raises `AssertionError` for a process that is less confined than an agent."""
    found: dict[str, Any] = json.loads(printed)
    assert found["uid"] == 1000, found
    assert (found["seccomp"], found["privileges"]) == ("2", "1"), found
    assert set(found["capabilities"]) == {"0" * 16}, found
    assert set(found["namespaces"]) <= DENIED | {"EBADF"}, found
    assert "reached" not in found["loopback"], found
    owner = (work / mark).stat().st_uid
    assert owner == work.stat().st_uid
    assert owner != 0 or os.getuid() != 0
