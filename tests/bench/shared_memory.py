"""The shared memory of Postgres servers, which outlives killed servers: files in /dev/shm, and SysV segments."""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass
class SharedMemory:
    """The files, and the ids of SysV segments (shmctl(2))."""

    files: set[Path] = field(default_factory=set)
    segments: set[int] = field(default_factory=set)

    @classmethod
    def of_servers_below(cls, folder: Path) -> "SharedMemory":
        """The shared memory of the Postgres servers whose data is in this directory."""
        found = cls()
        for pid in _servers_below(folder):
            with suppress(OSError):  # it has ended, and removed what it had
                found.add(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace"))
        return found

    def add(self, maps: str) -> None:
        """Add the shared memory of a process, from its memory map (proc(5)); the inode of a SysV segment is its id."""
        for line in maps.splitlines():
            _, _, _, _, inode, *path = line.split(maxsplit=5)
            name = path[0].removesuffix(" (deleted)") if path else ""
            if name.startswith("/dev/shm/PostgreSQL."):
                self.files.add(Path(name))
            elif name.startswith("/SYSV"):
                self.segments.add(int(inode))

    def remove(self) -> None:
        """Remove all of it, once the servers have ended."""
        for file in self.files:
            file.unlink(missing_ok=True)
        for segment in self.segments:
            subprocess.run(["ipcrm", "--shmem-id", str(segment)], check=False, capture_output=True)


def _servers_below(folder: Path) -> Iterator[int]:
    for process in psutil.process_iter(["cmdline"]):
        program, *arguments = process.info["cmdline"] or [""]
        if Path(program).name == "postgres" and any(word.startswith(f"{folder}/") for word in arguments):
            yield from (one.pid for one in (process, *_children(process)))


def _children(server: psutil.Process) -> list[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return server.children()
    return []
