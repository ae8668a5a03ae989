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
from spawner.runtimes.commands import TIMEOUT_STATUSES, Command, CommandResult, Output
from spawner.runtimes.runtime_logs import LogQuery

_STDERR: Final = 2
"""The engine's number of standard error in a multiplexed stream."""


async def run(container: DockerContainer, command: Command) -> CommandResult:
    """Run a command to its end. After its timeout, the command is killed with all processes of its session."""
    output = Output(command.max_output)
    began = time.monotonic()
    execution = await container.exec(
        ["/bin/sh", "-c", _WITH_TIMEOUT, "sh", f"{command.seconds:g}", *command.argv],
        environment=dict(command.environment),
        workdir=command.folder or f"{ROOT}/work",
    )
    async with execution.start() as stream:
        while (message := await stream.read_out()) is not None:
            output.add(message.data, error=message.stream == _STDERR)
    code = (await execution.inspect())["ExitCode"]
    return output.result(code, timed_out=code in TIMEOUT_STATUSES and time.monotonic() - began >= command.seconds)


async def log(container: DockerContainer, query: LogQuery) -> AsyncGenerator[bytes, None]:
    """The log of a container; the client decodes it."""
    parameters: dict[str, Any] = {
        "stdout": True,
        "stderr": True,
        "tail": "all" if query.lines is None else str(query.lines),
    }
    if not query.follow:
        for text in await container.log(**parameters):
            yield text.encode()
        return
    # The client's own generator leaves the connection open if the generator is closed before the log ends.
    query_parameters = {key: str(value).lower() for key, value in {**parameters, "follow": True}.items()}
    path = f"containers/{container.id}/logs"
    async with container.docker._query(path, params=query_parameters, timeout=None) as reply:  # noqa: SLF001  # see above
        try:
            async for text in multiplexed_result_stream(reply):
                yield text.encode()
        finally:
            reply.close()


_WITH_TIMEOUT: Final = 'seconds=$1; shift; exec timeout -k 1 "$seconds" "$@"'


_ARCHIVE_OVERHEAD: Final = 64 * 1024
"""More than the overhead of an archive with one file, in bytes."""


async def read(docker: Docker, container: str, path: str, limit: int) -> bytes:
    """The content of a file. Raises `ProviderError` if it is not a regular file, or has more than `limit` bytes."""
    data = bytearray()
    # The client's own call reads the whole archive into memory, and the agent determines the archive's size.
    async with docker._query(f"containers/{container}/archive", params={"path": path}) as reply:  # noqa: SLF001  # see above
        try:
            while len(data) <= limit + _ARCHIVE_OVERHEAD and (part := await reply.content.readany()):
                data += part
        finally:
            reply.close()  # the rest is not needed, and the engine locks the container while it sends
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            return _only_file(archive, path, limit)
    except tarfile.TarError as error:
        raise ProviderError(ProviderFault.TRANSIENT, f"docker: {path} was not sent as an archive: {error}") from error


def _only_file(archive: tarfile.TarFile, path: str, limit: int) -> bytes:
    """The content of the only entry of an archive. Raises `ProviderError` if it is not a regular file or too large."""
    member = archive.next()
    content = archive.extractfile(member) if member is not None and member.isfile() else None
    if member is None or content is None:
        raise ProviderError(ProviderFault.REFUSED, f"{path} is not a regular file")
    if member.size > limit:
        raise ProviderError(ProviderFault.REFUSED, f"{path} has {member.size} bytes; the limit is {limit}")
    return content.read()
