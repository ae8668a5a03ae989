"""Opens the Docker runtime: connects to the engine once and requests its version."""

from contextlib import suppress

import aiohttp
from aiodocker import Docker

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.repositories.mirror_paths import mirrors_folder
from spawner.runtimes.boxes.provider import ProviderError
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.docker.containers import ContainerOptions
from spawner.runtimes.docker.faults import faults
from spawner.runtimes.docker.provider import DockerProvider
from spawner.runtimes.docker.shared_folders import is_shared

_CALL_TIMEOUT = aiohttp.ClientTimeout(total=60, connect=5)
_log = logs.get("runtime.docker")


async def open_docker(settings: Settings, herd: str, *, starts: bool = True) -> BoxRuntime:
    """Open the runtime. Raises `RuntimeFailedError` if the engine does not respond, or no sandbox image is set.

    `starts`: whether sandboxes will be started.
    """
    if settings.sandbox_image is None:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "runtime docker needs an image: set SANDBOX_IMAGE to one that the engine has"
        )
    docker = _client(settings)
    try:
        with faults("requesting the version"):
            await _require_json(docker)
            version = await docker.version()
    except ProviderError as error:
        with suppress(aiohttp.ClientError):
            await docker.close()
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    options = ContainerOptions(
        image=settings.sandbox_image,
        network=settings.docker_network,
        user=settings.docker_user,
        read_only=settings.docker_read_only,
        platform=settings.docker_platform,
    )
    shared = starts and await is_shared(docker, options, mirrors_folder(settings.home))
    _log.info("docker runtime enabled", engine=version.get("Version"), image=settings.sandbox_image)
    return BoxRuntime(DockerProvider(docker, options, mounts_repository=shared), herd, settings.sandbox_nats_url)


async def _require_json(docker: Docker) -> None:
    """Raise `TypeError` if a successful reply is not JSON.

    The client also raises it, but leaves the connection open until garbage collection.
    """
    async with docker.session.get(f"{docker.docker_host}/version") as response:
        if response.ok and response.content_type != "application/json":
            raise TypeError(f"the reply is {response.content_type}")


def _client(settings: Settings) -> Docker:
    try:
        return Docker(settings.docker_host, timeout=_CALL_TIMEOUT)
    except (
        AssertionError,
        ValueError,
    ) as error:  # the client raises these if it finds no engine, or an invalid address
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "no Docker Engine found: start one, or set DOCKER_HOST to its address"
        ) from error
