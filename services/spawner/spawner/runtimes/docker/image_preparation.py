"""Prepares an image for boxes: adds the initial directories of a box's volume, and the worker if it is missing.

Both are in one layer on the requested image. The new image is created once for each engine, and its name is derived
from its contents.
"""

import asyncio
import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.boxes.worker_bundle import COMPILE, LABEL, WORKER, digest, pack
from spawner.runtimes.docker import container_files

_TIMEOUT_SECONDS: Final = 120.0
"""The timeout of one preparation."""
_POLL_SECONDS: Final = 0.1
_ABANDONED: Final = 30.0
"""Seconds to wait for another process that prepares the image, while its container does not run. Then the container is
deleted, because that process has probably ended."""
_NOT_FOUND, _CONFLICT = 404, 409
PREPARED_REPOSITORY: Final = "sandherd-ready"
"""The repository name of prepared images."""


class ImagePreparation:
    """Prepares the images of one engine. `worker` is the worker's archive; None: that of the worker installed here.

    `platform`: the platform for which an image is prepared, if the image has several; None: the engine chooses, and
    prefers its own platform.
    """

    def __init__(
        self, docker: Docker, owner: tuple[int, int], worker: bytes | None = None, platform: str | None = None
    ) -> None:
        self._docker = docker
        self._worker = worker
        self._owner = owner
        self._platform = platform
        self._lock = asyncio.Lock()

    async def image_for(self, image: str) -> str:
        """The prepared image for a requested image. Raises `ProviderError`, `DockerError`."""
        base = await self._inspect(image)
        labels = (base.get("Config") or {}).get("Labels") or {}
        worker_digest = None if LABEL in labels else await self._worker_digest()
        name = _name(worker_digest or "", base["Id"], self._owner, self._platform)
        if not await self._image_exists(name):
            async with self._lock, asyncio.timeout(_TIMEOUT_SECONDS):
                while not await self._image_exists(name):
                    await self._make(name, base["Id"], image, lacks_worker=worker_digest is not None)
        return name

    async def _inspect(self, image: str) -> Mapping[str, Any]:
        try:
            return await self._docker.images.inspect(image)
        except DockerError as error:
            if error.status != _NOT_FOUND:
                raise
            message = f"docker: the engine has no image {image}; pull it, or use another"
            raise ProviderError(ProviderFault.REFUSED, message) from error

    async def _image_exists(self, name: str) -> bool:
        try:
            await self._docker.images.inspect(name)
        except DockerError as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    async def _make(self, name: str, base: str, image: str, *, lacks_worker: bool) -> None:
        """Create the image, or wait while another process creates it: only one can create a container of this name."""
        config: dict[str, Any] = {
            "Image": base,
            "Entrypoint": list(COMPILE),
            "User": "0",
            "Labels": {LABEL: ""},
            "HostConfig": {"NetworkMode": "none"},
        }
        container_name = name.replace(":", "-")
        try:
            container = await self._create(config, container_name)
        except DockerError as error:
            if error.status == _NOT_FOUND and self._platform:
                raise ProviderError(ProviderFault.REFUSED, _other_platform(image, self._platform)) from error
            if error.status != _CONFLICT:
                raise
            await self._wait_for(self._docker.containers.container(container_name))
            return
        try:
            await self._fill(container, image, lacks_worker=lacks_worker)
            repository, _, tag = name.partition(":")
            await container.commit(repository=repository, tag=tag, pause=False)
        finally:  # also if cancelled, so that no other process waits for an abandoned container
            await asyncio.shield(_delete_container(container))

    async def _create(self, config: dict[str, Any], name: str) -> DockerContainer:
        if self._platform is None:
            return await self._docker.containers.create(config, name=name)
        parameters = {"name": name, "platform": self._platform}
        query = self._docker._query_json  # noqa: SLF001  # `containers.create` has no parameter for the platform
        created = await query("containers/create", "POST", params=parameters, data=config)
        return self._docker.containers.container(created["Id"])

    async def _fill(self, container: DockerContainer, image: str, *, lacks_worker: bool) -> None:
        await container.put_archive("/", io.BytesIO(container_files.image_folders(self._owner)))
        if not lacks_worker:
            return
        worker = await pack() if self._worker is None else self._worker
        await container.put_archive(WORKER, io.BytesIO(worker))
        await container.start()
        if (await container.wait(timeout=_TIMEOUT_SECONDS))["StatusCode"]:
            output = " ".join(await container.log(stdout=True, stderr=True, tail=3))
            raise ProviderError(ProviderFault.REFUSED, f"docker: {_no_python(image)} {output.strip()}".rstrip())

    async def _wait_for(self, container: DockerContainer) -> None:
        """Wait until the process that created the container has removed it. Remove an abandoned container."""
        waited = 0.0
        while True:
            try:
                state: Mapping[str, Any] = (await container.show())["State"]
            except DockerError as error:
                if error.status != _NOT_FOUND:
                    raise
                return
            if state["Status"] != "running" and waited > _ABANDONED:
                await _delete_container(container)
                return
            waited += _POLL_SECONDS
            await asyncio.sleep(_POLL_SECONDS)

    async def _worker_digest(self) -> str:
        """The digest of the worker to add."""
        return await digest() if self._worker is None else hashlib.sha256(self._worker).hexdigest()


async def _delete_container(container: DockerContainer) -> None:
    with suppress(DockerError):
        await container.delete(force=True)


def _name(worker: str, base: str, owner: tuple[int, int], platform: str | None) -> str:
    """The name of a prepared image, with a digest of its parts."""
    parts = f"{worker} {base} {owner}" + (f" {platform}" if platform else "")
    return f"{PREPARED_REPOSITORY}:{hashlib.sha256(parts.encode()).hexdigest()[:16]}"


def _other_platform(image: str, platform: str) -> str:
    return (
        f"docker: the engine has no image {image} for {platform}; pull it with "
        f"`docker pull --platform {platform} {image}`, or change SANDHERD_DOCKER_PLATFORM"
    )


def _no_python(image: str) -> str:
    return f"image {image} has no Python that can run the worker: build one with `sandherd image build`."
