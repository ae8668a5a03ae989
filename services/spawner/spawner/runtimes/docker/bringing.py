"""Bringing the worker to an engine, for images that lack it: one volume for each image, filled once.

Whether it is filled is told by the container that filled it: it stays, ended, under the volume's own name.
"""

import asyncio
import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from spawner.runtimes.boxes.bundle import COMPILE, LABEL, WORKER, NoWorkerError, bundle
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault

_PATIENCE: Final = 120.0
"""How long it may take, in seconds."""
_LOOK_AGAIN: Final = 0.1
_ABANDONED: Final = 30.0
"""After so many seconds one who has begun with it, and not gone on, is taken to be gone."""
_NOT_FOUND, _CONFLICT = 404, 409


class Bringing:
    """Of one engine. `bundled` is what is brought; None: the worker that is installed here."""

    def __init__(self, docker: Docker, bundled: bytes | None = None) -> None:
        self._docker = docker
        self._bundled = bundled
        self._one = asyncio.Lock()

    async def volume_for(self, image: str) -> str | None:
        """The volume with the worker for this image; None for one that has its own. Raises `ProviderError`."""
        shown = await self._docker.images.inspect(image)
        if LABEL in ((shown.get("Config") or {}).get("Labels") or {}):
            return None
        packed = self._packed()
        volume = f"sandherd-worker-{hashlib.sha256(packed + shown['Id'].encode()).hexdigest()[:16]}"
        async with self._one, asyncio.timeout(_PATIENCE):
            while not await self._filled(volume):
                await self._fill(volume, image, packed)
        return volume

    async def _filled(self, volume: str) -> bool:
        """Whether it is; one that somebody else fills is waited for. One that was given up is taken away."""
        porter, waited = self._docker.containers.container(volume), 0.0
        while True:
            try:
                state: Mapping[str, Any] = (await porter.show())["State"]
            except DockerError as error:
                if error.status != _NOT_FOUND:
                    raise
                return False
            if state["Status"] == "exited":
                return state["ExitCode"] == 0 or await self._give_up(porter, volume)
            if state["Status"] != "running" and waited > _ABANDONED:
                return await self._give_up(porter, volume)
            waited += _LOOK_AGAIN
            await asyncio.sleep(_LOOK_AGAIN)

    async def _fill(self, volume: str, image: str, packed: bytes) -> None:
        mount: dict[str, Any] = {"Type": "volume", "Source": volume, "Target": WORKER}
        host: dict[str, Any] = {"Mounts": [mount], "NetworkMode": "none"}
        told: dict[str, Any] = {
            "Image": image,
            "Entrypoint": list(COMPILE),
            "User": "0",
            "Labels": {LABEL: ""},
            "HostConfig": host,
        }
        try:
            porter = await self._docker.containers.create(told, name=volume)
        except DockerError as error:
            if error.status != _CONFLICT:
                raise
            return
        try:
            await porter.put_archive(WORKER, io.BytesIO(packed))
            await porter.start()
            status = (await porter.wait(timeout=_PATIENCE))["StatusCode"]
        except BaseException:  # cancelled, too: nobody is to wait for what is not gone on with
            await asyncio.shield(self._give_up(porter, volume))
            raise
        if status:
            said = " ".join(await porter.log(stdout=True, stderr=True, tail=3))
            await self._give_up(porter, volume)
            raise ProviderError(ProviderFault.REFUSED, f"docker: {_unfit(image)} {said.strip()}".rstrip())

    async def _give_up(self, porter: DockerContainer, volume: str) -> bool:
        """Take both away, so that it can be begun anew."""
        with suppress(DockerError):
            await porter.delete(force=True)
        with suppress(DockerError):
            await (await self._docker.volumes.get(volume)).delete()
        return False

    def _packed(self) -> bytes:
        try:
            return bundle() if self._bundled is None else self._bundled
        except NoWorkerError as error:
            told = f"docker: {error}, and the image lacks it: install it, or make an image with sandherd image build"
            raise ProviderError(ProviderFault.REFUSED, told) from error


def _unfit(image: str) -> str:
    return f"image {image} has no Python that the worker can run on: make one that has with `sandherd image build`."
