"""The first process of a box (a container, a pod, a rented machine): runs the worker and reaps orphans.

If the worker is lost, a second one is started at once, which recovers. In a restarted box the worker recovers as well.
The exit status is that of the last worker, in shell convention (128 + signal). This process runs no agent and has no
connection, so that it does not fail together with the worker.
"""

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandherd_worker import oom
from sandherd_worker.warm_start import ENVIRONMENT, WarmError, read_environment
from sandherd_worker.worker_exit import FINAL, ExitCode

BEGUN: Final = "begun"
"""File in the state directory, created when a worker is started."""
_HANDLED_SIGNALS: Final = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT}
"""They are blocked, and received by `sigwait`."""
_MEMORY_CGROUPS: Final = (("/sys/fs/cgroup", "memory.events"), ("/sys/fs/cgroup/memory", "memory.oom_control"))
"""The cgroup of the box in version 2 and in version 1, each with the file that shows that it exists."""


def main() -> int:
    """Run until the worker ends, and return its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    state = Path(os.environ.get("SANDHERD_STATE_DIR", ""))
    try:
        variables = read_environment(state / ENVIRONMENT)
        recovering = _was_started_before(state)
    except (WarmError, OSError) as error:
        sys.stderr.write(f"sandherd-box: {error}\n")
        return ExitCode.USAGE
    environ, first = worker_environment(variables, os.environ), WorkerProcess()
    killed = _oom_kills(environ)
    code = first.run(environ, recovering=recovering)
    if code not in FINAL and not recovering and not first.end_requested:
        loss_variables = {"SANDHERD_LOST_SIGNAL": str(-code)} if code < 0 else {}
        if code == -signal.SIGKILL and _oom_kills(environ) > killed:
            loss_variables["SANDHERD_LOST_FOR_MEMORY"] = "1"
        code = WorkerProcess().run(environ | loss_variables, recovering=True)
    return 128 - code if code < 0 else code


def _oom_kills(environ: Mapping[str, str]) -> int:
    """The number of out-of-memory kills in the worker's cgroup; 0 if that is unknown."""
    group = environ.get("SANDHERD_CGROUP")
    return (oom.kills(Path(group)) or 0) if group else 0


def worker_environment(variables: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """The worker's environment: `variables`, `PATH` of the image, and the cgroup that counts its memory.

    No other variable of the image is passed on.
    """
    found = {**variables, "PATH": own.get("PATH") or variables.get("PATH", os.defpath)}
    # PYTHONPATH points to a worker that was copied in, hidden from the agent; SANDHERD_TOOLCHAINS to the agent SDKs.
    found |= {name: own[name] for name in ("PYTHONPATH", "SANDHERD_TOOLCHAINS") if name in own}
    # The reachable ports may be known only once the box exists; the runtime then sets the variable for this process.
    found |= {name: own[name] for name in ("SANDHERD_PORTS",) if name in own and name not in variables}
    group = next((folder for folder, file in _MEMORY_CGROUPS if Path(folder, file).exists()), None)
    return found | ({"SANDHERD_CGROUP": group} if group else {})


class WorkerProcess:
    """One worker process."""

    def __init__(self) -> None:
        self.end_requested = False

    def run(self, environ: Mapping[str, str], *, recovering: bool) -> int:
        """Run a worker until it ends; returns its exit status, or the negative number of the signal that ended it."""
        arguments = ["--recover"] if recovering else []
        command = [sys.executable, "-P", "-m", "sandherd_worker.main", *arguments]
        default_signals = [
            signal.SIGPIPE,
            signal.SIGXFSZ,
            signal.SIGINT,
            signal.SIGQUIT,
        ]  # a shell that starts the box with `&` has it ignore the last two
        worker = os.posix_spawn(command[0], command, environ, setsigmask=[], setsigdef=default_signals)
        while True:
            if signal.sigwait(_HANDLED_SIGNALS) != signal.SIGCHLD:
                self.end_requested = True
                os.kill(worker, signal.SIGTERM)
            elif (code := _reap(worker)) is not None:
                return code


def _reap(worker: int) -> int | None:
    """Collect all available exit statuses; returns the worker's, if it is among them."""
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


def _was_started_before(state: Path) -> bool:
    """Whether a worker was started in this box before. If not, record that one is started now. Raises `OSError`."""
    mark = state / BEGUN
    if mark.exists():
        return True
    mark.touch()
    return False


if __name__ == "__main__":
    sys.exit(main())
