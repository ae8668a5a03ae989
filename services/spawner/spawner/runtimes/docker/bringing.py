"""Making an image ready for boxes: with a box's folders, which its volume begins with, and the worker if it lacks it.

That is one layer on the image that was asked for, made once at each engine. The name of what is made tells of what.
"""

import asyncio
import hashlib
import io
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from spawner.runtimes.boxes.bundle import COMPILE, LABEL, WORKER, digest, packed
from spawner.runtimes.boxes.provider import ProviderError, ProviderFault
from spawner.runtimes.docker import archives

_PATIENCE: Final = 120.0
"""How long it may take, in seconds."""
_LOOK_AGAIN: Final = 0.1
_ABANDONED: Final = 30.0
"""After so many seconds one who has begun with it, and not gone on, is taken to be gone."""
_NOT_FOUND, _CONFLICT = 404, 409
READY: Final = "sandherd-ready"
"""What such images are called."""


class Bringing:
    """Of one engine. `bundled` is the worker that is brought; None: the one that is installed here."""

    def __init__(self, docker: Docker, owner: tuple[int, int], bundled: bytes | None = None) -> None:
        self._docker = docker
        self._bundled = bundled
        self._owner = owner
        self._one = asyncio.Lock()

    async def image_for(self, image: str) -> str:
        """The image to make boxes of, where this one is asked for. Raises `ProviderError`, `DockerError`."""
        shown = await self._shown(image)
        labels = (shown.get("Config") or {}).get("Labels") or {}
        worker = None if LABEL in labels else await self._worker()
        name = _name(worker or "", shown["Id"], self._owner)
        if not await self._is_there(name):
            async with self._one, asyncio.timeout(_PATIENCE):
                while not await self._is_there(name):
                    await self._make(name, shown["Id"], image, lacks_worker=worker is not None)
        return name

    async def _shown(self, image: str) -> Mapping[str, Any]:
        try:
            return await self._docker.images.inspect(image)
        except DockerError as error:
            if error.status != _NOT_FOUND:
                raise
            told = f"docker: there is no image {image} here; pull it, or name another"
            raise ProviderError(ProviderFault.REFUSED, told) from error

    async def _is_there(self, name: str) -> bool:
        try:
            await self._docker.images.inspect(name)
        except DockerError as error:
            if error.status != _NOT_FOUND:
                raise
            return False
        return True

    async def _make(self, name: str, base: str, image: str, *, lacks_worker: bool) -> None:
        """Make it; where somebody else does, wait until that is over. Its container has its name, so there is one."""
        told: dict[str, Any] = {
            "Image": base,
            "Entrypoint": list(COMPILE),
            "User": "0",
            "Labels": {LABEL: ""},
            "HostConfig": {"NetworkMode": "none"},
        }
        called = name.replace(":", "-")
        try:
            porter = await self._docker.containers.create(told, name=called)
        except DockerError as error:
            if error.status != _CONFLICT:
                raise
            await self._wait_for(self._docker.containers.container(called))
            return
        try:
            await self._fill(porter, image, lacks_worker=lacks_worker)
            repository, _, tag = name.partition(":")
            await porter.commit(repository=repository, tag=tag, pause=False)
        finally:  # cancelled, too: nobody is to wait for what is not gone on with
            await asyncio.shield(_take_away(porter))

    async def _fill(self, porter: DockerContainer, image: str, *, lacks_worker: bool) -> None:
        await porter.put_archive("/", io.BytesIO(archives.grounds(self._owner)))
        if not lacks_worker:
            return
        worker = await packed() if self._bundled is None else self._bundled
        await porter.put_archive(WORKER, io.BytesIO(worker))
        await porter.start()
        if (await porter.wait(timeout=_PATIENCE))["StatusCode"]:
            said = " ".join(await porter.log(stdout=True, stderr=True, tail=3))
            raise ProviderError(ProviderFault.REFUSED, f"docker: {_unfit(image)} {said.strip()}".rstrip())

    async def _wait_for(self, porter: DockerContainer) -> None:
        """Until somebody else has taken it away; what was given up is taken away here."""
        waited = 0.0
        while True:
            try:
                state: Mapping[str, Any] = (await porter.show())["State"]
            except DockerError as error:
                if error.status != _NOT_FOUND:
                    raise
                return
            if state["Status"] != "running" and waited > _ABANDONED:
                await _take_away(porter)
                return
            waited += _LOOK_AGAIN
            await asyncio.sleep(_LOOK_AGAIN)

    async def _worker(self) -> str:
        """Which worker it is that is brought."""
        return await digest() if self._bundled is None else hashlib.sha256(self._bundled).hexdigest()


async def _take_away(porter: DockerContainer) -> None:
    with suppress(DockerError):
        await porter.delete(force=True)


def _name(worker: str, base: str, owner: tuple[int, int]) -> str:
    """It tells of what the image is made."""
    return f"{READY}:{hashlib.sha256(f'{worker} {base} {owner}'.encode()).hexdigest()[:16]}"


def _unfit(image: str) -> str:
    return f"image {image} has no Python that the worker can run on: make one that has with `sandherd image build`."
