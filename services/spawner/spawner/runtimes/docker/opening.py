"""Opening the Docker runtime: the engine is asked who it is, once."""

from contextlib import suppress

import aiohttp
from aiodocker import Docker

from sandherd.settings import Settings
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import ProviderError
from spawner.runtimes.boxes.runtime import BoxRuntime
from spawner.runtimes.contract import RuntimeFailedError, RuntimeFault
from spawner.runtimes.docker.containers import Kind
from spawner.runtimes.docker.engine import Engine
from spawner.runtimes.docker.faults import faults

_CALL = aiohttp.ClientTimeout(total=60, connect=5)
_log = logs.get("runtime.docker")


async def open_docker(settings: Settings, herd: str) -> BoxRuntime:
    """The runtime. Raises `RuntimeFailedError` where there is no engine, or no image to make sandboxes of."""
    if settings.sandbox_image is None:
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "runtime docker needs an image: set SANDBOX_IMAGE to one that the engine has"
        )
    docker = _client(settings)
    try:
        with faults("saying who it is"):
            version = await docker.version()
    except ProviderError as error:
        with suppress(aiohttp.ClientError):
            await docker.close()
        raise RuntimeFailedError(RuntimeFault.REFUSED, str(error)) from error
    _log.info("docker runtime", engine=version.get("Version"), image=settings.sandbox_image)
    kind = Kind(
        image=settings.sandbox_image,
        network=settings.docker_network,
        user=settings.docker_user,
        read_only=settings.docker_read_only,
    )
    return BoxRuntime(Engine(docker, kind), herd, settings.sandbox_nats_url)


def _client(settings: Settings) -> Docker:
    try:
        return Docker(settings.docker_host, timeout=_CALL)
    except (AssertionError, ValueError) as error:  # it asserts that it has found an engine
        raise RuntimeFailedError(
            RuntimeFault.REFUSED, "no Docker Engine is found: start one, or set DOCKER_HOST to where it listens"
        ) from error
