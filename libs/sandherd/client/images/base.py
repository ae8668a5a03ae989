"""What an image is that the worker is to be put on: found out by asking a shell in it."""

from dataclasses import dataclass
from typing import Final

from sandherd.bundle import MINOR
from sandherd.client.errors import HerdError
from sandherd.client.images.docker import Docker
from sandherd.contracts.errors import Code

MINORS: Final = ("3.11", "3.12", "3.13")
"""The kinds of Python that the worker runs on."""
_LOOK: Final = """
for one in python3.11 python3.12 python3.13 python3; do
  command -v $one >/dev/null 2>&1 && $one -c 'import sys; print("python %d.%d" % sys.version_info[:2])'
done
for one in /lib/ld-musl-*; do [ -e "$one" ] && echo libc musl; done
echo machine $(uname -m)
"""


@dataclass(frozen=True)
class Base:
    """An image's own Pythons of a kind that the worker runs on, its C library and its machine."""

    pythons: tuple[str, ...]
    libc: str
    machine: str

    def fitting(self) -> str | None:
        """The kind of Python that the worker is brought for: the one that runs here if it has that."""
        if MINOR in self.pythons:
            return MINOR
        return self.pythons[0] if self.pythons else None


def look(docker: Docker, image: str, platform: str | None) -> Base:
    """Start it once, without a network. What is not here is fetched. Raises `HerdError`."""
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
            f"{image} has no shell that can be asked what it is",
            remedy="take a base that is made from Debian or Alpine",
        )
    pythons = tuple(dict.fromkeys(minor for minor in found.get("python", []) if minor in MINORS))
    return Base(pythons, "musl" if "musl" in found.get("libc", []) else "gnu", found["machine"][0])
