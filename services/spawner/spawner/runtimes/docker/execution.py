"""Runs a command in a container, and reads a file from it, with limits on size and time."""

import io
import tarfile
import time
from collections.abc import AsyncGenerator
from typing import Any, Final

from aiodocker import Docker
from aiodocker.containers import DockerContainer
from aiodocker.multiplexed import multiplexed_result_stream

from spawner.runtimes.boxes.box_files import ROOT
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.commands import Command, CommandResult, Output
from spawner.runtimes.runtime_logs import LogQuery

_ERROR: Final = 2
"""The engine's number of standard error in a multiplexed stream."""


async def run(container: DockerContainer, command: Command) -> CommandResult:
    """Run a command to its end. After its timeout it is killed, with all processes of its session."""
    output = Output(command.max_output)
    began = time.monotonic()
    execution = await container.exec(
        ["/bin/sh", "-c", _BOUNDED, "sh", f"{command.seconds:g}", *command.argv],
        environment=dict(command.environment),
        workdir=command.folder or f"{ROOT}/work",
    )
    async with execution.start() as stream:
        while (message := await stream.read_out()) is not None:
            output.add(message.data, error=message.stream == _ERROR)
    code = (await execution.inspect())["ExitCode"]
    return output.result(code, timed_out=code in _ENDED and time.monotonic() - began >= command.seconds)


async def log(container: DockerContainer, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """The log of a container; the client decodes it."""
    wanted: dict[str, Any] = {
        "stdout": True,
        "stderr": True,
        "tail": "all" if query.lines is None else str(query.lines),
    }
    if not query.follow:
        for text in await container.log(**wanted):
            yield text.encode()
        return
    # The client's own generator leaves the connection open if it ends before the log does.
    params = {key: str(value).lower() for key, value in {**wanted, "follow": True}.items()}
    path = f"containers/{container.id}/logs"
    async with container.docker._query(path, params=params, timeout=None) as answer:  # noqa: SLF001  # see above
        try:
            async for text in multiplexed_result_stream(answer):
                yield text.encode()
        finally:
            answer.close()


_ENDED: Final = frozenset({124, 137, 143})
"""Exit statuses of `timeout` (coreutils, busybox) after it ended the command; a command may use them as well."""
_BOUNDED: Final = 'seconds=$1; shift; exec timeout -k 1 "$seconds" "$@"'


_AROUND: Final = 64 * 1024
"""More than the overhead of an archive with one file, in bytes."""


async def read(docker: Docker, container: str, path: str, limit: int) -> bytes:
    """The content of a file. Raises `ProviderError`, without fetching it, if it is not a regular file or too large."""
    packed = bytearray()
    # The client's own call holds the whole archive in memory, and the agent determines its size.
    async with docker._query(f"containers/{container}/archive", params={"path": path}) as answer:  # noqa: SLF001  # see above
        try:
            while len(packed) <= limit + _AROUND and (part := await answer.content.readany()):
                packed += part
        finally:
            answer.close()  # the rest is not needed, and the engine locks the container while it sends
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            return _only_file(archive, path, limit)
    except tarfile.TarError as error:
        raise ProviderError(ProviderFault.TRANSIENT, f"docker: {path} was not sent as an archive: {error}") from error


def _only_file(archive: tarfile.TarFile, path: str, limit: int) -> bytes:
    """The content of the only file in an archive. Raises `ProviderError` if it is not a regular file or too large."""
    member = archive.next()
    content = archive.extractfile(member) if member is not None and member.isfile() else None
    if member is None or content is None:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is not a regular file")
    if member.size > limit:
        raise ProviderError(ProviderFault.REFUSED, f"{path} has {member.size} bytes; the limit is {limit}")
    return content.read()
