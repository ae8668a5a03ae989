"""Finds out whether containers of an engine see a folder of the spawner, which may be on another machine."""

import secrets
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from sandherd.telemetry import logs
from spawner.repositories.mirror_paths import SCRATCH
from spawner.runtimes.boxes.provider import ProviderError
from spawner.runtimes.docker.containers import PREFIX, ContainerOptions
from spawner.runtimes.docker.faults import faults

_PROBE: Final = "/probe"
_MAX_BYTES: Final = 4096
_log: Final = logs.get("runtime.docker")


async def is_shared(docker: Docker, options: ContainerOptions, folder: Path) -> bool:
    """Whether containers of the engine can read files in this folder, which is created if it does not exist.

    A container of the default image reads a random text in it. False also if the engine does not have that image.
    """
    token = secrets.token_hex(16)
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix=SCRATCH) as name:
            directory = Path(name)
            directory.chmod(0o755)
            (directory / "token").write_text(token)
            (directory / "token").chmod(0o644)
            with faults("mounting a folder of the spawner"):
                text = await _read(docker, options, directory)
    except (ProviderError, OSError) as error:
        _log.info("docker mounts no repositories", error=str(error))
        return False
    if text != token:
        _log.info("docker mounts no repositories", error="its containers can't read files of the spawner's home")
    return text == token


async def _read(docker: Docker, options: ContainerOptions, folder: Path) -> str:
    query = docker._query_json  # noqa: SLF001  # `containers.create` has no parameter for the platform
    parameters = {"name": f"{PREFIX}probe-{secrets.token_hex(6)}", "platform": options.platform or ""}
    created = await query("containers/create", "POST", params=parameters, data=_config(options, folder))
    container = docker.containers.container(created["Id"])
    try:
        return await _output(container)
    finally:
        with suppress(DockerError):
            await container.delete(force=True, v=True)


async def _output(container: DockerContainer) -> str:
    output = b""
    async with container.attach(stdout=True) as stream:
        await container.start()
        while len(output) < _MAX_BYTES and (message := await stream.read_out()) is not None:
            output += message.data
    return output.decode(errors="replace").strip()


def _config(options: ContainerOptions, folder: Path) -> dict[str, Any]:
    """A container that prints the file and ends, with the restrictions of a box. Pure."""
    mount = {"Type": "bind", "Source": str(folder), "Target": _PROBE, "ReadOnly": True}
    return {
        "Image": options.image,
        "Entrypoint": ["/bin/sh", "-c", f"cat {_PROBE}/token"],
        "Cmd": [],
        "User": options.user,
        "AttachStdout": True,
        "HostConfig": {
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": options.read_only,
            "Mounts": [mount],
        },
    }
