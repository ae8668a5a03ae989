"""The SDKs of agents for tests: installed from their locks once, and kept in `build`.

`python -m tests.drivers.toolchains` installs all of them, as `make test` has it done beside its first steps.
"""

import os
from fcntl import LOCK_EX, flock
from pathlib import Path

from sandherd.client.toolchains import KINDS, install, is_installed, lock_of

BUILD = Path(__file__).parents[2] / "build"
TOOLCHAINS = BUILD / "toolchains"
UV = BUILD / "uv" / "bin"


def interpreter(kind: str) -> Path:
    """The Python that has the SDK for a kind of agent.

    Only what is imported is compiled, by whoever imports it first: two thirds of OpenHands no test comes to.
    """
    python = TOOLCHAINS / kind / "bin" / "python"
    if _is_there(kind):
        return python
    TOOLCHAINS.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PATH": os.pathsep.join((str(UV), os.environ.get("PATH", "")))}
    with (TOOLCHAINS / f".{kind}.lock").open("w") as only_one:
        flock(only_one, LOCK_EX)
        return python if _is_there(kind) else install(kind, TOOLCHAINS, lock_of(kind), environ, compiled=False)


def _is_there(kind: str) -> bool:
    """Whether exactly what its lock says is installed."""
    return is_installed(kind, TOOLCHAINS, lock_of(kind))


if __name__ == "__main__":
    for each in KINDS:
        interpreter(each)
