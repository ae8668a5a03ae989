"""Runs the `docker` command, which uses the user's contexts and registry passwords, and buildx if available."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sandherd.client.errors import HerdError
from sandherd.client.terminal_text import write_text
from sandherd.contracts.errors import Code

_MAX_ERROR_LINES: Final = 6
_NO_PERMISSION: Final = re.compile(
    r"permission denied while trying to connect to the docker|dial unix \S+ connect: permission denied", re.IGNORECASE
)
"""Matches output of docker if this user may not use the Docker Engine."""
_UNAVAILABLE: Final = re.compile(r"cannot connect to the docker daemon|dial unix", re.IGNORECASE)
"""Matches output of docker if the Docker Engine does not respond."""
_ACCESS_DENIED: Final = re.compile(r"denied|unauthorized|authentication required", re.IGNORECASE)
"""Matches output of docker if a registry denies access."""
_OTHER_PLATFORM: Final = re.compile(r"exec format error|does not match the specified platform", re.IGNORECASE)
"""Matches output of docker if this machine can't run programs of the image's platform."""
_ABSENT: Final = re.compile(
    r"no such (image|object|host)|not found|manifest unknown|does not exist|unable to find image|dial tcp",
    re.IGNORECASE,
)
"""Matches output of docker if an image or its registry does not exist."""


@dataclass(frozen=True)
class Docker:
    """The `docker` command, and whether it has buildx."""

    program: str
    buildx: bool
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @classmethod
    def find(cls, environ: Mapping[str, str] = os.environ) -> "Docker":
        """The `docker` command on PATH. Raises `HerdError` if there is none."""
        program = shutil.which("docker", path=environ.get("PATH"))
        if program is None:
            raise HerdError.of(
                Code.UNAVAILABLE,
                "the docker command is not installed",
                remedy="install Docker's command line, or build the output of `sandherd image context DIR` elsewhere",
            )
        buildx_check = subprocess.run(
            [program, "buildx", "version"], env=environ, capture_output=True, check=False, stdin=subprocess.DEVNULL
        )
        return cls(program, buildx_check.returncode == 0, environ)

    def read_output(self, *arguments: str, problem: str) -> str:
        """The output of a command. If it fails, raises `HerdError`, whose message begins with `problem`."""
        process = subprocess.run(
            [self.program, *arguments], env=self.environ, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        if process.returncode:
            raise docker_error(problem, process.stderr + process.stdout)
        return process.stdout.strip()

    def run_visibly(self, *arguments: str, problem: str, folder: Path) -> None:
        """Run a command, and copy its output to standard error. If it fails, raises `HerdError` as `read_output`."""
        lines: list[str] = []
        environ = {**self.environ, "DOCKER_BUILDKIT": "1" if self.buildx else "0"}
        with subprocess.Popen(
            [self.program, *arguments], cwd=folder, env=environ, text=True, errors="replace", stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            for line in process.stdout or ():
                write_text(line, end="", error=True)
                lines.append(line)
        if process.returncode:
            raise docker_error(problem, "".join(lines[-_MAX_ERROR_LINES:]))


def docker_error(problem: str, output: str) -> HerdError:
    """The error for a failed docker command, from its output. The message begins with `problem`."""
    end_of_output = " / ".join(line.strip() for line in output.strip().splitlines()[-_MAX_ERROR_LINES:] if line.strip())
    code, remedy = Code.REFUSED, "fix what docker reports, and try again"
    if _NO_PERMISSION.search(output):
        remedy = "add your user to the group `docker` and log in again, or use sudo"
    elif _UNAVAILABLE.search(output):
        code, remedy = Code.UNAVAILABLE, "start the Docker Engine, or set DOCKER_HOST to its address"
    elif _OTHER_PLATFORM.search(output):
        remedy = "build on a machine of that platform, or install emulation for it (binfmt)"
    elif _ACCESS_DENIED.search(output):
        remedy = "log in with `docker login`, and check that you have permission to read the base and push the tag"
    elif _ABSENT.search(output):
        code, remedy = Code.NOT_FOUND, "check that the name is right, and that this machine reaches its registry"
    return HerdError.of(code, f"{problem}: {end_of_output}", remedy=remedy)
