"""Docker's own command: it knows contexts, registries and their passwords, and builds with buildx where that is."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.client.terminal_text import put
from sandherd.contracts.errors import Code

_LAST_LINES: Final = 6
_AWAY: Final = re.compile(r"cannot connect to the docker daemon|dial unix", re.IGNORECASE)
_DENIED: Final = re.compile(r"denied|unauthorized|authentication required", re.IGNORECASE)
_FOREIGN: Final = re.compile(r"exec format error|does not match the specified platform", re.IGNORECASE)
_ABSENT: Final = re.compile(
    r"no such (image|object|host)|not found|manifest unknown|does not exist|unable to find image|dial tcp",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Docker:
    """The command, and whether it has buildx."""

    program: str
    buildx: bool
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> "Docker":
        """The one on PATH. Raises `HerdError` where there is none."""
        program = shutil.which("docker", path=environ.get("PATH"))
        if program is None:
            raise HerdError.of(
                Code.UNAVAILABLE,
                "there is no docker command here",
                remedy="install Docker's command line, or build elsewhere what `sandherd image context DIR` writes",
            )
        asked = subprocess.run(
            [program, "buildx", "version"], env=environ, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        return cls(program, asked.returncode == 0, environ)

    def ask(self, *words: str, what: str) -> str:
        """What a command prints. Raises `HerdError`."""
        done = subprocess.run(
            [self.program, *words], env=self.environ, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if done.returncode:
            raise failure(what, done.stderr + done.stdout)
        return done.stdout.strip()

    def show(self, *words: str, what: str, folder: Path) -> None:
        """Run a command whose progress is for people: it goes to our standard error as it comes. Raises `HerdError`."""
        said: list[str] = []
        environ = {**self.environ, "DOCKER_BUILDKIT": "1" if self.buildx else "0"}
        with subprocess.Popen(
            [self.program, *words], cwd=folder, env=environ, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                put(line, end="", error=True)
                said.append(line)
        if process.returncode:
            raise failure(what, "".join(said[-_LAST_LINES:]))


def failure(what: str, said: str) -> HerdError:
    """The error for what docker said."""
    last = " / ".join(line.strip() for line in said.strip().splitlines()[-_LAST_LINES:] if line.strip())
    code, remedy = Code.REFUSED, "mend what docker says, and try again"
    if _AWAY.search(said):
        code, remedy = Code.UNAVAILABLE, "start the Docker Engine, or set DOCKER_HOST to where it listens"
    elif _FOREIGN.search(said):
        remedy = "build on a machine of that platform, or have its programs emulated (binfmt)"
    elif _DENIED.search(said):
        remedy = "log in with `docker login`, and see that you may read the base and push the tag"
    elif _ABSENT.search(said):
        code, remedy = Code.NOT_FOUND, "see that the name is right, and that this machine reaches its registry"
    return HerdError.of(code, f"{what}: {last}", remedy=remedy)
