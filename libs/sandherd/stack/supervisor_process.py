"""Starts the supervisor of a stack, as a process that continues when the command that starts it ends."""

import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from sandherd.private_files import open_log
from sandherd.stack.home import Home, ProcessRecord, record_of

PROGRAM: Final = [sys.executable, "-m", "sandherd.stack.supervisor"]
"""The first arguments of the supervisor's command. The home and the number of nats-servers follow."""


def start_supervisor(home: Home, servers: int, environ: Mapping[str, str]) -> ProcessRecord:
    """Start the supervisor, with this number of nats-servers and this environment. Returns its record."""
    home.make()
    with os.fdopen(open_log(home.logs / "supervisor.log"), "ab") as log:
        process = subprocess.Popen(
            [*PROGRAM, str(home.path), str(servers)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.path,
            env=environ,
            start_new_session=True,
        )
    # Set, so that Python does not warn about a child that still runs: it outlives this process.
    process.returncode = 0
    return record_of(process.pid)
