"""Running a command in a container: its output in bounds, its time limited, and its end told from the engine's."""

import time
from typing import Final

from aiodocker.containers import DockerContainer

from spawner.runtimes.boxes.furnishing import ROOT
from spawner.runtimes.commands import Command, Output, Ran

_ERROR: Final = 2
"""The engine's number of standard error in a stream of both."""


async def run(container: DockerContainer, command: Command) -> Ran:
    """Run it to its end. One whose time is over is ended, with all that it has started in its session."""
    said = Output(command.most_output)
    began = time.monotonic()
    execution = await container.exec(
        ["/bin/sh", "-c", _BOUNDED, "sh", f"{command.seconds:g}", *command.argv],
        environment=dict(command.environment),
        workdir=command.folder or f"{ROOT}/work",
    )
    async with execution.start() as stream:
        while (message := await stream.read_out()) is not None:
            said.add(message.data, error=message.stream == _ERROR)
    code = (await execution.inspect())["ExitCode"]
    return said.ran(code, late=code in _ENDED and time.monotonic() - began >= command.seconds)


_ENDED: Final = frozenset({124, 137, 143})
"""What `timeout` of coreutils and of busybox ends with when it had to end the command; a command may do so itself."""
_BOUNDED: Final = 'seconds=$1; shift; exec timeout -k 1 "$seconds" "$@"'
