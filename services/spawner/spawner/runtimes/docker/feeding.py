"""Giving a container its files as it starts: over its standard input, to a shell that becomes its program.

The engine would take an archive for a container as well, which costs it a third of a start more.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

from aiodocker.containers import DockerContainer

from sandherd.bus.together import end
from spawner.runtimes.docker.archives import GIVEN

NEVER_GIVEN: Final = 7
"""How a container ends whose files did not come: as a worker does that had no leave to begin."""
_GATE: Final = f"""
never() {{ echo "sandherd: the files of this container have not come" >&2; exit {NEVER_GIVEN}; }}
root=$1
shift
if [ ! -e "$root/{GIVEN}" ]; then
  trap never TERM INT
  umask 077
  read -r size || never
  head -c "$size" | tar -xpof - -C "$root" || never
  [ -e "$root/{GIVEN}" ] || never
  umask 022
  trap - TERM INT
fi
exec "$@" </dev/null
"""


def gate(root: str, program: Sequence[str]) -> list[str]:
    """What a container runs: it waits for its files, unless it has them, and becomes its program. Pure."""
    return ["/bin/sh", "-c", _GATE, "sandherd-gate", root, *program]


def feed(archive: bytes) -> bytes:
    """What the gate reads: how much it is, and the archive. Pure."""
    return f"{len(archive)}\n".encode() + archive


async def start(container: DockerContainer, archive: bytes) -> None:
    """Start a container that nobody has started yet, and hand it its files. Raises what the client raises."""
    async with container.attach(stdin=True) as given:
        handing = asyncio.ensure_future(given.write_in(feed(archive)))  # what is large is taken only once it runs
        try:
            await container.start()
            await handing
        finally:
            await end([handing])
