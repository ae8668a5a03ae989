"""Inspects a base image for the worker, by a script that runs in the image."""

import platform
import sys
import sysconfig
from dataclasses import dataclass
from typing import Final

from sandherd.admin.images.docker import Docker
from sandherd.client.errors import HerdError
from sandherd.contracts.errors import Code
from sandherd.worker_bundle import MINOR

MINORS: Final = ("3.11", "3.12", "3.13")
"""The Python versions that the worker supports."""
LIBCS: Final = ("gnu", "musl")
_INSPECTION_SCRIPT: Final = """
for one in python3.11 python3.12 python3.13 python3; do
  command -v $one >/dev/null 2>&1 && $one -c 'import sys; print("python %d.%d" % sys.version_info[:2])'
done
command -v git >/dev/null 2>&1 && echo git yes
for one in /lib/ld-musl-*; do [ -e "$one" ] && echo libc musl; done
echo machine $(uname -m)
"""
"""A shell script that prints a line for each Python, and for git, musl and the machine of an image."""


@dataclass(frozen=True)
class PythonPlatform:
    """The Python that the worker is packaged for: its version, and the platform of its compiled modules."""

    minor: str
    libc: str
    machine: str


_UV_PLATFORMS: Final = {"musl": "unknown-linux-musl", "gnu": "manylinux_2_28"}
"""The names of uv for platforms, without the machine, by C library."""
THIS_PLATFORM: Final = PythonPlatform(
    MINOR, "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "gnu", platform.machine()
)
"""The platform of the running Python."""


@dataclass(frozen=True)
class BaseImage:
    """An image: its Python versions that the worker supports, its C library, its machine, and whether it has git."""

    pythons: tuple[str, ...]
    libc: str
    machine: str
    git: bool = False

    def has_python(self, oldest: str = MINORS[0]) -> bool:
        """Whether the image has a Python for the worker of at least the version `oldest`, as major and minor."""
        return bool(self._suitable_pythons(oldest))

    def python_platform(self, oldest: str = MINORS[0]) -> PythonPlatform:
        """The Python to package the worker for. It has the version that runs here if the image has that version.

        If the image has no suitable Python, it is a version to download.
        """
        pythons = self._suitable_pythons(oldest) or _from_oldest(MINORS, oldest)
        return PythonPlatform(MINOR if MINOR in pythons else pythons[0], self.libc, self.machine)

    def _suitable_pythons(self, oldest: str) -> tuple[str, ...]:
        return _from_oldest(self.pythons, oldest)


def inspect_base(docker: Docker, image: str, platform: str | None) -> BaseImage:
    """Inspect an image, by running it once without a network. It is pulled if it is not local. Raises `HerdError`."""
    platform_option = ["--platform", platform] if platform else []
    arguments = [
        "run",
        "--rm",
        *platform_option,
        "--network",
        "none",
        "--user",
        "0",
        "--entrypoint",
        "/bin/sh",
        image,
        "-c",
        _INSPECTION_SCRIPT,
    ]
    return parse_inspection(docker.read_output(*arguments, problem=f"{image} can't be inspected"), image)


def download_options(kind: PythonPlatform) -> list[str]:
    """The options of `uv pip install` that choose packages for this Python platform."""
    platform = f"{kind.machine}-{_UV_PLATFORMS[kind.libc]}"
    return ["--python", sys.executable, "--python-version", kind.minor, "--python-platform", platform]


def _from_oldest(minors: tuple[str, ...], oldest: str) -> tuple[str, ...]:
    return tuple(minor for minor in minors if MINORS.index(minor) >= MINORS.index(oldest))


def parse_inspection(output: str, image: str = "the image") -> BaseImage:
    """Parse the output of the inspection script. Raises `HerdError`."""
    values: dict[str, list[str]] = {}
    for line in output.splitlines():
        kind, _, value = line.partition(" ")
        values.setdefault(kind, []).append(value.strip())
    if not values.get("machine"):
        raise HerdError.of(
            Code.REFUSED,
            f"{image} has no shell to inspect it with",
            remedy="use a base image that is derived from Debian or Alpine",
        )
    pythons = tuple(dict.fromkeys(minor for minor in values.get("python", []) if minor in MINORS))
    libc = "musl" if "musl" in values.get("libc", []) else "gnu"
    return BaseImage(pythons, libc, values["machine"][0], "git" in values)
