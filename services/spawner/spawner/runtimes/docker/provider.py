"""The Docker Engine as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
import io
import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

from aiodocker import Docker, DockerError
from aiodocker.containers import DockerContainer
from aiodocker.volumes import DockerVolume

from spawner.runtimes.boxes.box_files import HERD, ROOT
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    CommandResult,
    File,
    ProviderError,
    ProviderFault,
)
from spawner.runtimes.docker import container_files, containers, execution
from spawner.runtimes.docker.containers import PREFIX, QUARANTINED_PREFIX, ContainerOptions
from spawner.runtimes.docker.faults import faults
from spawner.runtimes.docker.image_preparation import ImagePreparation
from spawner.runtimes.runtime_logs import LogQuery

_NOT_FOUND, _CONFLICT, _NOT_MODIFIED = 404, 409, 304
_OTHER_REPLICA_SECONDS: Final = 10.0
_POLL_SECONDS: Final = 0.05
_REASON_LINES: Final = 5
_PAUSED_ALREADY: Final = ("is already paused", "cannot pause a paused")
_NOT_PAUSED: Final = ("is not paused", "cannot resume a running process")
_CHANGE_EVENTS: Final = {"type": ["container"], "event": ["die", "destroy", "pause", "unpause", "start"]}


class DockerProvider:
    """One Docker Engine. `close` closes `docker`, too."""

    name = "docker"
    abilities = Abilities(pause=True, mounts=True, ports=True)

    def __init__(
        self, docker: Docker, options: ContainerOptions, worker: bytes | None = None, *, mounts_repository: bool = False
    ) -> None:
        """`mounts_repository`: whether the engine's containers can mount the spawner's mirrors of repositories.

        `worker`: the archive of the worker for images that lack it; None: that of the worker installed here.
        """
        self.abilities = replace(self.abilities, ports=options.network != "none", mounts_repository=mounts_repository)
        self._docker = docker
        self._options = options
        uid, _, gid = options.user.partition(":")
        self._owner = (int(uid), int(gid or uid))
        self._preparation = ImagePreparation(docker, self._owner, worker, options.platform)

    def port_refusal(self, _unit: str, _port: int) -> str:
        """Why a port of a container's loopback interface is a port of its host; empty if it is not."""
        return "containers share the network of their host" if self._options.network == "host" else ""

    async def create(self, spec: BoxSpec) -> Box:
        """Create the container and start it with its files. Continues an incomplete creation."""
        box = await self.get(spec.name)
        new = box is None
        if new and spec.recovers:
            raise _lost_volume_error(spec)
        if box is None or box.hollow:
            with faults(f"creating {spec.name}"):
                box = await self._make(spec)
        if box and box.runs:
            return box
        if spec.recovers:
            with faults(f"recovering {spec.name}"):
                await self._require_data(spec)
        with faults(f"starting {spec.name}"):
            container = self._container(spec.name)
            if new and box is None:
                await container_files.start(container, container_files.files_only(spec.files, self._owner))
            else:  # another call may have written to the container's standard input already, or its volume is not new
                await container.put_archive(ROOT, io.BytesIO(container_files.with_folders(spec.files, self._owner)))
                await container.start()
        return await self._existing(spec.name)

    async def get(self, name: str) -> Box | None:
        """The container with this name, quarantined or not."""
        for prefix in (PREFIX, QUARANTINED_PREFIX):
            with faults(f"looking for {name}"):
                try:
                    container = self._docker.containers.container(prefix + name)
                    return await _with_last_output(container, containers.box(await container.show()))
                except DockerError as error:
                    if error.status != _NOT_FOUND:
                        raise
        return await self._hollow_box(name)

    async def _hollow_box(self, name: str) -> Box | None:
        """The box of a volume without a container, which was removed externally or by a crash of the engine."""
        with faults(f"looking for {name}"):
            try:
                return containers.hollow_box(await DockerVolume(self._docker, PREFIX + name).show())
            except DockerError as error:
                if error.status != _NOT_FOUND:
                    raise
                return None

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All containers with these labels, except those removed meanwhile, and volumes without a container."""
        filters = {"label": [f"{key}={value}" for key, value in labels.items()]}
        with faults("listing containers"):
            volumes = (await self._docker.volumes.list(filters=filters))["Volumes"] or []
            listed = await self._docker.containers.list(all="true", filters=json.dumps(filters))
        full_names = [str(container["Names"][0]).lstrip("/") for container in listed]
        names = [name.removeprefix(QUARANTINED_PREFIX).removeprefix(PREFIX) for name in full_names]
        boxes = [await self.get(name) for name in names]
        lone_volumes = [volume for volume in volumes if volume["Name"].removeprefix(PREFIX) not in names]
        return [*filter(None, boxes), *map(containers.hollow_box, lone_volumes)]

    async def start(self, name: str) -> None:
        """Start the container's program again."""
        with faults(f"starting {name}"):
            await self._container(name).start()

    async def stop(self, name: str, grace: float) -> None:
        """Send SIGTERM to the container's program, and SIGKILL after `grace` seconds."""
        with faults(f"stopping {name}"):
            await _ignore_missing(self._container(name).stop(t=max(0, round(grace))))

    async def pause(self, name: str) -> None:
        """Freeze the container's control group."""
        await self._freeze(name, frozen=True)

    async def resume(self, name: str) -> None:
        """Thaw the container's control group."""
        await self._freeze(name, frozen=False)

    async def remove(self, name: str) -> None:
        """Remove the container and its volume."""
        with faults(f"removing {name}"):
            for prefix in (PREFIX, QUARANTINED_PREFIX):
                await _ignore_missing(self._docker.containers.container(prefix + name).delete(force=True, v=True))
            await _ignore_missing(DockerVolume(self._docker, PREFIX + name).delete())

    async def mark_quarantined(self, name: str) -> None:
        """Rename the container. Every replica recognizes the new name."""
        with faults(f"quarantining {name}"):
            await _ignore_missing(self._container(name).rename(QUARANTINED_PREFIX + name))

    async def unmark_quarantined(self, name: str) -> None:
        """Restore the container's original name."""
        with faults(f"ending the quarantine of {name}"):
            await _ignore_missing(self._docker.containers.container(QUARANTINED_PREFIX + name).rename(PREFIX + name))

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the box's user."""
        with faults(f"running {command.argv[0]} in {name}"):
            return await execution.run(self._container(name), command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`."""
        with faults(f"writing files into {name}"):
            await self._container(name).put_archive(ROOT, io.BytesIO(container_files.files_only(files, self._owner)))

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content."""
        with faults(f"reading {path} of {name}"):
            return await execution.read(self._docker, PREFIX + name, path, limit)

    async def logs(self, name: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The output of the first process of a container, quarantined or not."""
        box = await self._existing(name)
        container = self._docker.containers.container(box.id)
        with faults(f"reading the log of {name}"):
            async with aclosing(execution.log(container, query)) as pieces:
                async for piece in pieces:
                    yield piece

    async def address(self, name: str, port: int) -> Address:
        """The container's address in the engine's network."""
        with faults(f"looking for {name}"):
            host = containers.host_of(await self._container(name).show())
        if host is None:
            raise ProviderError(ProviderFault.REFUSED, f"docker: {name} can't be reached: it has no network")
        return Address(f"http://{host}:{port}")

    async def changes(self) -> AsyncIterator[str]:
        """Yield the names of changed boxes from now on, from the engine's events."""
        filters = json.dumps({**_CHANGE_EVENTS, "label": [HERD]})
        with faults("receiving events"):
            events = self._docker.events.subscribe(filters=filters)
            try:
                while (event := await events.get()) is not None:
                    yield str(event["Actor"]["Attributes"]["name"]).removeprefix(PREFIX)
            finally:
                await self._docker.events.stop()

    async def close(self) -> None:
        """Close the connections."""
        await self._docker.close()

    # --- creation ----------------------------------------------------------------------------------------------

    async def _make(self, spec: BoxSpec) -> Box | None:
        """Create the container. If another replica creates it at the same time, return that replica's box."""
        image = spec.image or self._options.image
        try:
            config = containers.config(spec, self._options, await self._preparation.image_for(image))
            await self._docker.containers.create(config, name=PREFIX + spec.name)
        except DockerError as error:
            if error.status == _NOT_FOUND:  # the prepared image was removed, or is not complete yet
                raise ProviderError(
                    ProviderFault.TRANSIENT, f"docker: creating {spec.name}: {error.message}"
                ) from error
            if error.status != _CONFLICT:
                raise
            return await self._wait_for_other(spec.name)
        return None

    async def _require_data(self, spec: BoxSpec) -> None:
        """If the volume of a new container is new, too, remove both and raise `ProviderError`.

        The old volume was then removed after we had found it, as the engine creates a missing volume. An old volume
        can't be removed any more, because the container uses it.
        """
        try:
            await execution.read(self._docker, PREFIX + spec.name, f"{ROOT}/{container_files.COMPLETE}", limit=0)
        except DockerError as error:
            if error.status != _NOT_FOUND:
                raise
            await self.remove(spec.name)
            raise _lost_volume_error(spec) from error

    async def _wait_for_other(self, name: str) -> Box:
        """Wait until a container that another replica creates is visible. Raises `TimeoutError`."""
        async with asyncio.timeout(_OTHER_REPLICA_SECONDS):
            while (box := await self.get(name)) is None or box.hollow:  # noqa: ASYNC110  # there is no notification
                await asyncio.sleep(_POLL_SECONDS)
        return box

    # --- one container -----------------------------------------------------------------------------------------

    def _container(self, name: str) -> DockerContainer:
        return self._docker.containers.container(PREFIX + name)

    async def _existing(self, name: str) -> Box:
        box = await self.get(name)
        if box is None:
            raise ProviderError(ProviderFault.NOT_FOUND, f"docker: box {name} does not exist")
        return box

    async def _freeze(self, name: str, *, frozen: bool) -> None:
        """Pause or unpause the container. Does nothing if it is in that state, because the engine would refuse that."""
        box = await self._existing(name)
        if not box.alive:
            raise ProviderError(ProviderFault.REFUSED, f"docker: {name} is not running")
        if (box.state.value == "paused") == frozen:
            return
        with faults(f"{'pausing' if frozen else 'resuming'} {name}"):
            container = self._container(name)
            try:
                await (container.pause() if frozen else container.unpause())
            except DockerError as error:
                if not is_frozen_already(error.message, frozen=frozen):
                    raise


def is_frozen_already(refusal: str, *, frozen: bool) -> bool:
    """Whether an engine refuses to pause or unpause a container because it is in that state.

    The engine sets its own state by events of containerd, which may be late: after a resume it can show the container
    as paused for a moment, and containerd then refuses another resume.
    """
    return any(text in refusal for text in (_PAUSED_ALREADY if frozen else _NOT_PAUSED))


def _lost_volume_error(spec: BoxSpec) -> ProviderError:
    return ProviderError(ProviderFault.NOT_FOUND, f"docker: recovering {spec.name}: its volume no longer exists")


async def _with_last_output(container: DockerContainer, box: Box) -> Box:
    """The box, with the last lines of its output as the reason of a failure for which the engine gives none."""
    if box.end is None or box.end.code == 0 or box.end.reason:
        return box
    try:
        output = await container.log(stdout=True, stderr=True, tail=_REASON_LINES)
    except DockerError as error:
        if error.status == _NOT_FOUND:
            raise
        return box  # some logging drivers can't be read
    return replace(box, end=replace(box.end, reason=containers.last_output(output)))


async def _ignore_missing(request: Any) -> None:
    """Await a request. Ignores an error because the object does not exist, or is in the requested state already."""
    try:
        await request
    except DockerError as error:
        if error.status not in {_NOT_FOUND, _NOT_MODIFIED}:
            raise
