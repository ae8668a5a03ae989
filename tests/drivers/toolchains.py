"""The SDKs of agents for tests: installed once from their lock files, and stored in `build`.

`python -m tests.drivers.toolchains` installs all of them, as `make test` does beside its first steps.
"""

import os
import subprocess
from fcntl import LOCK_EX, flock
from pathlib import Path

from sandherd.admin.toolchains import PYTHON_OF_KIND, install, is_installed, lock_of

BUILD = Path(__file__).parents[2] / "build"
TOOLCHAINS = BUILD / "toolchains"
UV = BUILD / "uv" / "bin"
IMPORTED = {"acp": "acp", "claude": "claude_agent_sdk", "openhands": "openhands.sdk, openhands.tools"}


def interpreter(kind: str) -> Path:
    """The Python that has the SDK for a kind of agent.

    Only imported modules are compiled, right after the installation: no test needs two thirds of OpenHands, and a
    sandbox sees it read-only.
    """
    python = TOOLCHAINS / kind / "bin" / "python"
    if _is_repeated(kind):
        return python
    TOOLCHAINS.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PATH": os.pathsep.join((str(UV), os.environ.get("PATH", "")))}
    with (TOOLCHAINS / f".{kind}.lock").open("w") as only_one:
        flock(only_one, LOCK_EX)
        if not _is_repeated(kind):
            install(kind, TOOLCHAINS, lock_of(kind), environ, compile_modules=False)
            compiling = {**environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
            compiling.pop("PYTHONDONTWRITEBYTECODE", None)
            subprocess.run(
                [python, "-c", f"import {IMPORTED[kind]}"], env=compiling, stdout=subprocess.DEVNULL, check=True
            )
            _compiled(kind).write_bytes(lock_of(kind).read_bytes())
    return python


def _is_repeated(kind: str) -> bool:
    """Whether exactly the packages of the lock file are installed and compiled: an interrupt may come in between."""
    lock, compiled = lock_of(kind), _compiled(kind)
    if not is_installed(kind, TOOLCHAINS, lock):
        return False
    return compiled.is_file() and compiled.read_bytes() == lock.read_bytes()


def _compiled(kind: str) -> Path:
    """The lock file of the packages whose imported modules were compiled."""
    return TOOLCHAINS / f".{kind}.compiled"


if __name__ == "__main__":
    for each in PYTHON_OF_KIND:
        interpreter(each)
