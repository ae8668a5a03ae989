"""Reading a file out of a container: the engine sends whatever is there, so it is heard no longer than is of use."""

import io
import tarfile
from typing import Final

from aiodocker import Docker

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.docker import archives

_AROUND: Final = 64 * 1024
"""More than an archive of one file has beside its content."""


async def read(docker: Docker, container: str, path: str, limit: int) -> bytes:
    """The one file that is at a path. Raises `ProviderError` for what is none, or too large: it is not fetched."""
    packed = bytearray()
    # The client's own call for this holds the whole archive in memory, however large its agent has made it.
    async with docker._query(f"containers/{container}/archive", params={"path": path}) as answer:  # noqa: SLF001
        try:
            while len(packed) <= limit + _AROUND and (part := await answer.content.readany()):
                packed += part
        finally:
            answer.close()  # what is left is not wanted, and the engine keeps the container locked for it
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as archive:
            return archives.only_file(archive, path, limit)
    except tarfile.TarError as error:
        raise ProviderError(ProviderFault.TRANSIENT, f"docker: {path} came as no archive: {error}") from error
