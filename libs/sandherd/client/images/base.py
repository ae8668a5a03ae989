"""What an image is that the worker is to be put on: found out by asking a shell in it."""

import platform
import sysconfig
from dataclasses import dataclass
from typing import Final

from sandherd.bundle import MINOR
from sandherd.client.errors import HerdError
from sandherd.client.images.docker import Docker
from sandherd.contracts.errors import Code

MINORS: Final = ("3.11", "3.12", "3.13")
"""The kinds of Python that the worker runs on."""
LIBCS: Final = ("gnu", "musl")
_LOOK: Final = """
for one in python3.11 python3.12 python3.13 python3; do
  command -v $one >/dev/null 2>&1 && $one -c 'import sys; print("python %d.%d" % sys.version_info[:2])'
done
for one in /lib/ld-musl-*; do [ -e "$one" ] && echo libc musl; done
echo machine $(uname -m)
"""


@dataclass(frozen=True)
class Kind:
    """For which Python the worker is brought: its version, and what its compiled parts run on."""

    minor: str
    libc: str
    machine: str


OWN: Final = Kind(
    MINOR, "musl" if "musl" in (sysconfig.get_config_var("HOST_GNU_TYPE") or "") else "gnu", platform.machine()
)
"""The one that runs here."""


@dataclass(frozen=True)
class Base:
    """An image: its own Pythons of a kind that the worker runs on, its C library and its machine."""

    pythons: tuple[str, ...]
    libc: str
    machine: str

    @property
    def fits(self) -> bool:
        """Whether it has a Python for the worker."""
        return bool(self.pythons)

    @property
    def kind(self) -> Kind:
        """The Python that the worker is brought for: the same as runs here if it has that, or has none."""
        minor = MINOR if MINOR in self.pythons or not self.pythons else self.pythons[0]
        return Kind(minor, self.libc, self.machine)


def look(docker: Docker, image: str, platform: str | None) -> Base:
    """Start it once, without a network; what is not here is fetched. Raises `HerdError`."""
    chosen = ["--platform", platform] if platform else []
    words = ["run", "--rm", *chosen, "--network", "none", "--user", "0", "--entrypoint", "/bin/sh", image, "-c", _LOOK]
    return read(docker.ask(*words, what=f"{image} can't be looked into"), image)


def read(said: str, image: str = "the image") -> Base:
    """What the shell said. Raises `HerdError`."""
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        kind, _, value = line.partition(" ")
        found.setdefault(kind, []).append(value.strip())
    if not found.get("machine"):
        raise HerdError.of(
            Code.REFUSED,
            f"{image} has no shell that can say what it is",
            remedy="take a base that is made from Debian or Alpine",
        )
    pythons = tuple(dict.fromkeys(minor for minor in found.get("python", []) if minor in MINORS))
    return Base(pythons, "musl" if "musl" in found.get("libc", []) else "gnu", found["machine"][0])
