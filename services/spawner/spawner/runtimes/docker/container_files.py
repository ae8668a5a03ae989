"""Sends a container its files: as a tar archive, to the standard input of the shell that then executes its program.

An upload of the archive through the engine's API would increase the time of a start by a third.
"""

import asyncio
import io
from collections.abc import Collection, Sequence
from typing import Final

from aiodocker.containers import DockerContainer

from sandherd.archives.writer import Owner, add_directory
from sandherd.concurrency import cancel_and_wait
from spawner.runtimes.boxes import box_files
from spawner.runtimes.boxes.box_files import FOLDERS, ROOT
from spawner.runtimes.boxes.provider import File
from spawner.runtimes.boxes.worker_bundle import WORKER

COMPLETE: Final = "state/.given"
"""An empty file that is unpacked last. If it exists, all other files exist."""


def with_folders(files: Collection[File], owner: Owner) -> bytes:
    """An archive for an empty box: its directories and files, all owned by the box's user."""
    return box_files.pack(_with_complete(files), [f"./{name}" for name in FOLDERS], owner)


def files_only(files: Collection[File], owner: Owner) -> bytes:
    """An archive with files for a box whose directories exist."""
    return box_files.pack(_with_complete(files), (), owner)


def image_folders(owner: Owner) -> bytes:
    """An archive for an image: the initial directories of a box's volume, and one for the worker."""
    target = io.BytesIO()
    with box_files.new_archive(target) as archive:
        for folder in (ROOT.lstrip("/"), WORKER.lstrip("/")):
            add_directory(archive, folder, 0o755)
        for name in FOLDERS:
            add_directory(archive, f"{ROOT.lstrip('/')}/{name}", 0o700, owner)
    return target.getvalue()


def _with_complete(files: Collection[File]) -> list[File]:
    return [*files, File(f"{ROOT}/{COMPLETE}", b"")]


FILES_NOT_RECEIVED: Final = 7
"""Exit status of a container that did not receive its files. It is that of a worker that was not permitted to begin."""
_GATE: Final = f"""
never() {{ echo "sandherd: this container has not received its files" >&2; exit {FILES_NOT_RECEIVED}; }}
root=$1
shift
if [ ! -e "$root/{COMPLETE}" ]; then
  trap never TERM INT
  umask 077
  read -r size || never
  head -c "$size" | tar -xpof - -C "$root" || never
  [ -e "$root/{COMPLETE}" ] || never
  umask 022
  trap - TERM INT
fi
exec "$@" </dev/null
"""


def gate(root: str, program: Sequence[str]) -> list[str]:
    """The entrypoint of a container. It waits for the files, unless they exist, and executes the program. Pure."""
    return ["/bin/sh", "-c", _GATE, "sandherd-gate", root, *program]


def gate_input(archive: bytes) -> bytes:
    """The input of the gate: the archive's size in bytes, a newline, and the archive. Pure."""
    return f"{len(archive)}\n".encode() + archive


async def start(container: DockerContainer, archive: bytes) -> None:
    """Start a container that was never started, and send it its files. Raises the client's errors."""
    async with container.attach(stdin=True) as stdin:
        sending = asyncio.ensure_future(stdin.write_in(gate_input(archive)))  # the container reads it once it runs
        try:
            await container.start()
            await sending
        finally:
            await cancel_and_wait([sending])
