"""Runs a command beside another process, and ends the command when that process has ended, however it ended.

    python -I -S background_job.py PID COMMAND [ARGUMENT ...]

`make test` installs what tests need by such commands, beside the checks; PID is the id of make. A trap of a shell could
not end them after SIGKILL to make, and a shell starts background processes with SIGINT ignored. The command begins a
new session, so that all processes that it starts get the signals. Its exit status is that of this program.
"""

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

_GRACE = 5.0
"""The time between SIGTERM and SIGKILL, in seconds."""


def main() -> int:
    """Run the command. Returns its exit status, or 0 if the process has already ended."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):  # the command may still run when make gets these
        signal.signal(number, signal.SIG_IGN)
    try:
        controller = os.pidfd_open(int(sys.argv[1]))
    except ProcessLookupError:
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    job = subprocess.Popen(sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True)
    ended = os.pidfd_open(job.pid)
    try:
        select.select([controller, ended], [], [])
    finally:
        _end(job, ended)
    return job.returncode


def _end(job: subprocess.Popen[bytes], ended: int) -> None:
    """End what is left of the command's processes. Until the end, it is not reaped: no other group gets its id."""
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGTERM)
    select.select([ended], [], [], _GRACE)
    with suppress(ProcessLookupError):
        os.killpg(job.pid, signal.SIGKILL)
    job.wait()


if __name__ == "__main__":
    sys.exit(main())
