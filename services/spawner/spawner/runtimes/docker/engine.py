"""The Docker Engine as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import hashlib
import io
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer

from spawner.runtimes.boxes.bundle import COMPILE, WORKER, bundle
from spawner.runtimes.boxes.furnishing import HERD, ROOT
from spawner.runtimes.boxes.provider import (
    Abilities,
    Box,
    BoxSpec,
    Command,
    File,
    ProviderError,
    ProviderFault,
    Ran,
)
from spawner.runtimes.docker import archives, containers, executing
from spawner.runtimes.docker.containers import ASIDE, PREFIX, Kind
from spawner.runtimes.docker.faults import faults

_HAS_WORKER: Final = "dev.sandherd.worker"
"""The label of an image that has the worker in it."""
_COMPILING: Final = 120.0
"""How long it may take to compile the worker once it was brought, in seconds."""
_NOT_FOUND, _CONFLICT, _NOT_MODIFIED = 404, 409, 304
_ENDS: Final = {"type": ["container"], "event": ["die", "destroy", "pause", "unpause", "start"]}


class Engine:
    """One Docker Engine. `docker` is closed with it."""

    name = "docker"
    abilities = Abilities(pause=True, mounts=True)

    def __init__(self, docker: Docker, kind: Kind, bundled: bytes | None = None) -> None:
        self._docker = docker
        self._kind = kind
        self._bundled = bundled
        self._brought: dict[str, str | None] = {}
        uid, _, gid = kind.user.partition(":")
        self._owner = (int(uid), int(gid or uid))

    async def create(self, spec: BoxSpec) -> Box:
        """Make the container with its files, and start it. What a call before has left half done is gone on with."""
        box = await self.get(spec.name)
        if box is None:
            with faults(f"making {spec.name}"):
                await self._make(spec)
        elif box.runs:
            return box
        with faults(f"starting {spec.name}"):
            container = self._of(spec.name)
            await container.put_archive(ROOT, io.BytesIO(archives.fresh(spec.files, self._owner)))
            await container.start()
        return await self._known(spec.name)

    async def get(self, name: str) -> Box | None:
        """The container of this name, set aside or not."""
        for called in (PREFIX, ASIDE):
            with faults(f"looking for {name}"):
                try:
                    return containers.box(await self._docker.containers.container(called + name).show())
                except DockerError as error:
                    if error.status != _NOT_FOUND:
                        raise
        return None

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All containers with these labels, one that is gone meanwhile left out."""
        wanted = json.dumps({"label": [f"{key}={value}" for key, value in labels.items()]})
        with faults("listing containers"):
            found = await self._docker.containers.list(all="true", filters=wanted)
        names = [str(one["Names"][0]).lstrip("/").removeprefix(ASIDE).removeprefix(PREFIX) for one in found]
        boxes = [await self.get(name) for name in names]
        return [box for box in boxes if box]

    async def start(self, name: str) -> None:
        """Start its program once more."""
        with faults(f"starting {name}"):
            await self._of(name).start()

    async def stop(self, name: str, grace: float) -> None:
        """Ask it to end with SIGTERM, and end it after the grace."""
        with faults(f"stopping {name}"):
            await _unless_gone(self._of(name).stop(t=max(0, round(grace))))

    async def pause(self, name: str) -> None:
        """Freeze its control group."""
        await self._freeze(name, frozen=True)

    async def resume(self, name: str) -> None:
        """Let it go on."""
        await self._freeze(name, frozen=False)

    async def remove(self, name: str) -> None:
        """Remove the container and its volume."""
        with faults(f"removing {name}"):
            for called in (PREFIX, ASIDE):
                await _unless_gone(self._docker.containers.container(called + name).delete(force=True, v=True))

    async def set_aside(self, name: str) -> None:
        """Give it another name, by which every replica knows it."""
        with faults(f"setting {name} aside"):
            await _unless_gone(self._of(name).rename(ASIDE + name))

    async def take_back(self, name: str) -> None:
        """Give it its first name again."""
        with faults(f"taking {name} back"):
            await _unless_gone(self._docker.containers.container(ASIDE + name).rename(PREFIX + name))

    async def run(self, name: str, command: Command) -> Ran:
        """Run a command as the box's user."""
        with faults(f"running {command.argv[0]} in {name}"):
            return await executing.run(self._of(name), command)

    async def put(self, name: str, files: Collection[File]) -> None:
        """Put files below our folder."""
        with faults(f"putting files into {name}"):
            await self._of(name).put_archive(ROOT, io.BytesIO(archives.later(files, self._owner)))

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content."""
        with faults(f"reading {path} of {name}"):
            return archives.only_file(await self._of(name).get_archive(path), path, limit)

    async def changes(self) -> AsyncIterator[str]:
        """The engine's events of our containers, from now on."""
        filters = json.dumps({**_ENDS, "label": [HERD]})
        with faults("hearing events"):
            news = self._docker.events.subscribe(filters=filters)
            try:
                while (event := await news.get()) is not None:
                    yield str(event["Actor"]["Attributes"]["name"]).removeprefix(PREFIX)
            finally:
                await self._docker.events.stop()

    async def close(self) -> None:
        """Close the connections."""
        await self._docker.close()

    # --- making ------------------------------------------------------------------------------------------------

    async def _make(self, spec: BoxSpec) -> None:
        """Another replica may be making it at the same moment; then it is that one."""
        image = spec.image or self._kind.image
        try:
            told = containers.config(spec, self._kind, await self._worker_for(image))
            await self._docker.containers.create(told, name=PREFIX + spec.name)
        except DockerError as error:
            if error.status == _NOT_FOUND:
                raise ProviderError(
                    ProviderFault.REFUSED, f"docker: there is no image {image} here; pull it, or name another"
                ) from error
            if error.status != _CONFLICT:
                raise

    async def _worker_for(self, image: str) -> str | None:
        """The volume with the worker, brought to this engine once; None for an image that has its own."""
        if image not in self._brought:
            shown = await self._docker.images.inspect(image)
            labels = (shown.get("Config") or {}).get("Labels") or {}
            self._brought[image] = None if _HAS_WORKER in labels else await self._bring(image)
        return self._brought[image]

    async def _bring(self, image: str) -> str:
        packed = bundle() if self._bundled is None else self._bundled
        volume = f"sandherd-worker-{hashlib.sha256(packed).hexdigest()[:16]}"
        mount = {"Type": "volume", "Source": volume, "Target": WORKER}
        porter = await self._docker.containers.create(
            {
                "Image": image,
                "Entrypoint": list(COMPILE),
                "User": "0",
                "HostConfig": {"Mounts": [mount], "NetworkMode": "none"},
            }
        )
        try:
            await porter.put_archive(WORKER, io.BytesIO(packed))
            await porter.start()
            await porter.wait(timeout=_COMPILING)
        finally:
            await porter.delete(force=True)
        return volume

    # --- small things ------------------------------------------------------------------------------------------

    def _of(self, name: str) -> DockerContainer:
        return self._docker.containers.container(PREFIX + name)

    async def _known(self, name: str) -> Box:
        box = await self.get(name)
        if box is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"docker: there is no box {name}")
        return box

    async def _freeze(self, name: str, *, frozen: bool) -> None:
        """Unless it is as wanted: the engine would refuse that."""
        box = await self._known(name)
        if not box.alive:
            raise ProviderError(ProviderFault.REFUSED, f"docker: {name} does not run")
        if (box.state.value == "paused") == frozen:
            return
        with faults(f"{'pausing' if frozen else 'resuming'} {name}"):
            container = self._of(name)
            await (container.pause() if frozen else container.unpause())


async def _unless_gone(answer: Any) -> None:
    """There is none, or it is as wanted already: that is no fault."""
    try:
        await answer
    except DockerError as error:
        if error.status not in {_NOT_FOUND, _NOT_MODIFIED}:
            raise
