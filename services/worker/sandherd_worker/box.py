"""The first process of a box (a container, a pod, a rented machine): it runs the worker, and reaps what is orphaned.

A worker that is lost is made up for at once, by one that recovers; a box that is started again recovers as well. The
exit status is that of the last worker, as a shell says it. There is nothing here that could fail with the worker.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd_worker import oom
from sandherd_worker.exits import ExitCode
from sandherd_worker.warm import ENVIRONMENT, WarmError, read_environment

BEGUN: Final = "begun"
"""Stands in the state directory once a worker was started."""
_SIGNALS: Final = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
_NOTHING_LEFT: Final = frozenset({ExitCode.DRAINED, ExitCode.USAGE, ExitCode.NOT_STARTED})
_GROUPS: Final = (("/sys/fs/cgroup", "memory.events"), ("/sys/fs/cgroup/memory", "memory.oom_control"))


def main() -> int:
    """Live as long as the worker, and return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    state = Path(os.environ.get("SANDHERD_STATE_DIR", ""))
    try:
        given = read_environment(state / ENVIRONMENT)
        again = _begin(state)
    except (WarmError, OSError) as error:
        sys.stderr.write(f"sandherd-box: {error}\n")
        return ExitCode.USAGE
    environ, first = surroundings(given, os.environ), Life()
    killed = _kills(environ)
    code = first.run(environ, recovering=again)
    if code not in _NOTHING_LEFT and not again and not first.asked_to_end:
        lost = {"SANDHERD_LOST_SIGNAL": str(-code)} if code < 0 else {}
        if code == -signal.SIGKILL and _kills(environ) > killed:
            lost["SANDHERD_LOST_FOR_MEMORY"] = "1"
        code = Life().run(environ | lost, recovering=True)
    return 128 - code if code < 0 else code


def _kills(environ: Mapping[str, str]) -> int:
    """How often the kernel has killed here for want of memory; 0 where that is not shown."""
    group = environ.get("SANDHERD_CGROUP")
    return (oom.kills(Path(group)) or 0) if group else 0


def surroundings(given: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The worker's variables: the ones it is given, the image's own way to programs, and where its memory is counted.

    Nothing else that the image sets goes along.
    """
    found = {**given, "PATH": own.get("PATH") or given.get("PATH", os.defpath)}
    # A worker that was brought lies in the one, which its agent does not get to know; the SDKs of agents in the other.
    found |= {name: own[name] for name in ("PYTHONPATH", "SANDHERD_TOOLCHAINS") if name in own}
    # Where a server here is reached may be known only once there is a box: then whoever starts us says it.
    found |= {name: own[name] for name in ("SANDHERD_PORTS",) if name in own and name not in given}
    group = next((folder for folder, file in _GROUPS if Path(folder, file).exists()), None)
    return found | ({"SANDHERD_CGROUP": group} if group else {})


class Life:
    """Of one worker."""

    def __init__(self) -> None:
        self.asked_to_end = False

    def run(self, environ: Mapping[str, str], *, recovering: bool) -> int:
        """Run a worker to its end; its status, or minus the signal that ended it."""
        words = ["--recover"] if recovering else []
        command = [sys.executable, "-P", "-m", "sandherd_worker.main", *words]
        ours = [signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT]  # a shell's `&` has the last two ignored
        worker = os.posix_spawn(command[0], command, environ, setsigmask=[], setsigdef=ours)
        while True:
            if signal.sigwait(_SIGNALS) != signal.SIGCHLD:
                self.asked_to_end = True
                os.kill(worker, signal.SIGTERM)
            elif (code := _reap(worker)) is not None:
                return code


def _reap(worker: int) -> int | None:
    """Take every exit status there is; the worker's, if it is among them."""
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        if pid == worker:
            found = os.waitstatus_to_exitcode(status)


def _begin(state: Path) -> bool:
    """Whether a worker was started here before. Raises `OSError`."""
    mark = state / BEGUN
    if mark.exists():
        return True
    mark.touch()
    return False


if __name__ == "__main__":
    sys.exit(main())
