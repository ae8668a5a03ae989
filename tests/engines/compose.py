"""docker-compose.yml, run by Debian's docker-compose, on the tests' engine or on none."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from tests.engines.docker import Engine
from tests.engines.packages import unpacked

ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = (
    "docker-compose", "python3-attr", "python3-certifi", "python3-chardet", "python3-charset-normalizer",
    "python3-distutils", "python3-docker", "python3-dockerpty", "python3-docopt", "python3-dotenv", "python3-idna",
    "python3-jsonschema", "python3-packaging", "python3-pyrsistent", "python3-requests", "python3-six",
    "python3-texttable", "python3-urllib3", "python3-websocket", "python3-yaml",
)  # fmt: skip
_PYTHON: Final = "/usr/bin/python3"
"""Debian's own Python, which its docker-compose needs."""


class Compose:
    """The file at the repository's root, as a separate project; its services are those whose images the engine has."""

    def __init__(self, engine: Engine | None = None, **environ: str) -> None:
        self.engine = engine
        self._environ = environ

    def __call__(self, *words: str, patience: float = 240) -> subprocess.CompletedProcess[str]:
        """Run `docker-compose …`."""
        return subprocess.run(
            [_PYTHON, str(_program()), "--project-name", "herd", *words],
            cwd=ROOT, env=self.environ, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
            timeout=patience,
        )  # fmt: skip

    def checked_output(self, *words: str) -> str:
        """Run `docker-compose …`, which must succeed; returns its output."""
        done = self(*words)
        assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
        return done.stdout

    def write_docker(self, folder: Path) -> Path:
        """Write a `docker` that has only `compose`, for a shell that runs a user's commands."""
        program = folder / "bin" / "docker"
        program.parent.mkdir(exist_ok=True)
        exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in self.environ.items())
        program.write_text(f"""#!/bin/sh
[ "$1" = compose ] || exit 64
shift
{exports}
cd {ROOT}
exec {_PYTHON} {_program()} --project-name herd "$@"
""")
        program.chmod(0o755)
        return program

    @property
    def environ(self) -> Mapping[str, str]:
        """An environment without this machine's variables, except the paths of programs."""
        place = _program().parents[1] / "lib" / "python3" / "dist-packages"
        exports = {"PATH": os.environ["PATH"], "PYTHONPATH": str(place), "HOME": str(ROOT / "build")}
        return exports | ({"DOCKER_HOST": self.engine.host} if self.engine else {}) | self._environ


@cache
def _program() -> Path:
    return unpacked(*_PACKAGES) / "usr" / "bin" / "docker-compose"


if __name__ == "__main__":
    _program()
