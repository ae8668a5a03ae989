"""The Docker Engine as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer
from aiodocker.volumes import DockerVolume

from spawner.runtimes.boxes.furnishing import HERD, ROOT
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    File,
    ProviderError,
    ProviderFault,
    Ran,
)
from spawner.runtimes.docker import archives, containers, executing, feeding, reading
from spawner.runtimes.docker.bringing import Bringing
from spawner.runtimes.docker.containers import ASIDE, PREFIX, Kind
from spawner.runtimes.docker.faults import faults

_NOT_FOUND, _CONFLICT, _NOT_MODIFIED = 404, 409, 304
_PATIENCE: Final = 10.0
_LOOK_AGAIN: Final = 0.05
_LAST_LINES: Final = 5
_ENDS: Final = {"type": ["container"], "event": ["die", "destroy", "pause", "unpause", "start"]}


class Engine:
    """One Docker Engine. `docker` is closed with it."""

    name = "docker"
    abilities = Abilities(pause=True, mounts=True, ports=True)

    def __init__(self, docker: Docker, kind: Kind, bundled: bytes | None = None) -> None:
        if kind.network == "none":
            self.abilities = replace(self.abilities, ports=False)
        self._docker = docker
        self._kind = kind
        uid, _, gid = kind.user.partition(":")
        self._owner = (int(uid), int(gid or uid))
        self._bringing = Bringing(docker, self._owner, bundled)

    async def create(self, spec: BoxSpec) -> Box:
        """Make the container, and start it with its files. What a call before has left half done is gone on with."""
        box = await self.get(spec.name)
        new = box is None
        if box is None or box.hollow:
            with faults(f"making {spec.name}"):
                box = await self._make(spec)
        if box and box.runs:
            return box
        with faults(f"starting {spec.name}"):
            container = self._of(spec.name)
            if new and box is None:
                await feeding.start(container, archives.later(spec.files, self._owner))
            else:  # somebody may have handed it something over its input already; or its volume is not new
                await container.put_archive(ROOT, io.BytesIO(archives.fresh(spec.files, self._owner)))
                await container.start()
        return await self._known(spec.name)

    async def get(self, name: str) -> Box | None:
        """The container of this name, set aside or not."""
        for called in (PREFIX, ASIDE):
            with faults(f"looking for {name}"):
                try:
                    container = self._docker.containers.container(called + name)
                    return await _with_last_words(container, containers.box(await container.show()))
                except DockerError as error:
                    if error.status != _NOT_FOUND:
                        raise
        return await self._forsaken(name)

    async def _forsaken(self, name: str) -> Box | None:
        """A volume whose container somebody else has removed, or that an engine which died has left."""
        with faults(f"looking for {name}"):
            try:
                return containers.forsaken(await DockerVolume(self._docker, PREFIX + name).show())
            except DockerError as error:
                if error.status != _NOT_FOUND:
                    raise
                return None

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All containers with these labels, one that is gone meanwhile left out; and volumes that have lost theirs."""
        wanted = {"label": [f"{key}={value}" for key, value in labels.items()]}
        with faults("listing containers"):
            volumes = (await self._docker.volumes.list(filters=wanted))["Volumes"] or []
            found = await self._docker.containers.list(all="true", filters=json.dumps(wanted))
        names = [str(one["Names"][0]).lstrip("/").removeprefix(ASIDE).removeprefix(PREFIX) for one in found]
        boxes = [await self.get(name) for name in names]
        alone = [containers.forsaken(one) for one in volumes if one["Name"].removeprefix(PREFIX) not in names]
        return [*filter(None, boxes), *alone]

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
            await _unless_gone(DockerVolume(self._docker, PREFIX + name).delete())

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
            return await reading.read(self._docker, PREFIX + name, path, limit)

    async def address(self, name: str, port: int) -> Address:
        """Where the engine's network has put the container."""
        with faults(f"looking for {name}"):
            shown = await self._of(name).show()
        host = containers.host_of(shown)
        if host is None:
            raise ProviderError(ProviderFault.REFUSED, f"docker: {name} has no network that it could be reached by")
        return Address(f"http://{host}:{port}")

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

    async def _make(self, spec: BoxSpec) -> Box | None:
        """Another replica may be making it at the same moment; then it is that one, which is returned."""
        image = spec.image or self._kind.image
        try:
            told = containers.config(spec, self._kind, await self._bringing.image_for(image))
            await self._docker.containers.create(told, name=PREFIX + spec.name)
        except DockerError as error:
            if error.status == _NOT_FOUND:  # what was made of the image is gone again, or is on its way
                raise ProviderError(ProviderFault.TRANSIENT, f"docker: making {spec.name}: {error.message}") from error
            if error.status != _CONFLICT:
                raise
            return await self._made_by_another(spec.name)
        return None

    async def _made_by_another(self, name: str) -> Box:
        """Its name is taken as soon as it is asked for, and shown only once it is made. Raises `TimeoutError`."""
        async with asyncio.timeout(_PATIENCE):
            while (box := await self.get(name)) is None or box.hollow:  # noqa: ASYNC110  # nobody here is told
                await asyncio.sleep(_LOOK_AGAIN)
        return box

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


async def _with_last_words(container: DockerContainer, box: Box) -> Box:
    """The box; one that has failed with the last lines of what its program printed, where the engine says no more."""
    if box.end is None or box.end.code == 0 or box.end.reason:
        return box
    try:
        printed = await container.log(stdout=True, stderr=True, tail=_LAST_LINES)
    except DockerError as error:
        if error.status == _NOT_FOUND:
            raise
        return box  # a logging driver may keep nothing to read
    return replace(box, end=replace(box.end, reason=containers.last_words(printed)))


async def _unless_gone(answer: Any) -> None:
    """There is none, or it is as wanted already: that is no fault."""
    try:
        await answer
    except DockerError as error:
        if error.status not in {_NOT_FOUND, _NOT_MODIFIED}:
            raise
