"""A provider of boxes in several namespaces of a cluster. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing

from spawner.runtimes.boxes.box_files import PROJECT
from spawner.runtimes.boxes.provider import Address, Box, BoxSpec, Command, CommandResult, File
from spawner.runtimes.kubernetes.merged_streams import merge
from spawner.runtimes.kubernetes.provider import PodProvider
from spawner.runtimes.runtime_logs import LogQuery


class Namespaces:
    """Creates a box in the namespace of its project. A box is found in any of the namespaces.

    `default`: the provider for projects that are not in `projects`. `close` closes all of these providers.
    """

    name = "kubernetes"

    def __init__(self, default: PodProvider, projects: Mapping[str, PodProvider]) -> None:
        self.abilities = default.abilities
        self._default = default
        self._projects = projects
        self._all = list(dict.fromkeys([default, *projects.values()]))
        self._providers: dict[str, PodProvider] = {}
        """The provider of each known box, by the box's name. For any other box, all namespaces are searched."""

    async def create(self, spec: BoxSpec) -> Box:
        """Create the box in the namespace of its project, unless another namespace has it."""
        project = spec.labels.get(PROJECT, "")
        provider = await self._search(spec.name) or self._projects.get(project, self._default)
        box = await provider.create(spec)
        self._providers[spec.name] = provider
        return box

    async def get(self, name: str) -> Box | None:
        """The box with this name, or None."""
        return await (await self._provider_of(name)).get(name)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        listings = await asyncio.gather(*(pods.find(labels) for pods in self._all))
        self._providers = {box.name: pods for pods, boxes in zip(self._all, listings, strict=True) for box in boxes}
        return [box for boxes in listings for box in boxes]

    async def start(self, name: str) -> None:
        """Start the program of the box again."""
        await (await self._provider_of(name)).start(name)

    async def stop(self, name: str, grace: float) -> None:
        """Request the program of the box to end."""
        await (await self._provider_of(name)).stop(name, grace)

    async def pause(self, name: str) -> None:
        """Always refused, because Kubernetes can't pause pods."""
        await (await self._provider_of(name)).pause(name)

    async def resume(self, name: str) -> None:
        """Always refused, as pausing is."""
        await (await self._provider_of(name)).resume(name)

    async def remove(self, name: str) -> None:
        """Remove the box."""
        await (await self._provider_of(name)).remove(name)
        self._providers.pop(name, None)

    async def mark_quarantined(self, name: str) -> None:
        """Mark the box as quarantined."""
        await (await self._provider_of(name)).mark_quarantined(name)

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the mark."""
        await (await self._provider_of(name)).unmark_quarantined(name)

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command in the box."""
        return await (await self._provider_of(name)).run(name, command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files into the box."""
        await (await self._provider_of(name)).write_files(name, files)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content."""
        return await (await self._provider_of(name)).read(name, path, limit)

    async def address(self, name: str, port: int) -> Address:
        """The address of a port of the box."""
        return await (await self._provider_of(name)).address(name, port)

    async def logs(self, name: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The log of the box."""
        async with aclosing((await self._provider_of(name)).logs(name, query)) as pieces:
            async for piece in pieces:
                yield piece

    def changes(self) -> AsyncGenerator[str, None]:
        """Yield the names of boxes as they change, in any namespace."""
        return merge([pods.changes() for pods in self._all])

    async def close(self) -> None:
        """Close the connections."""
        for pods in self._all:
            await pods.close()

    async def _provider_of(self, name: str) -> PodProvider:
        """The provider that has the box with this name; the default provider if there is no such box."""
        return self._providers.get(name) or await self._search(name) or self._default

    async def _search(self, name: str) -> PodProvider | None:
        boxes = await asyncio.gather(*(pods.get(name) for pods in self._all))
        provider = next((pods for pods, box in zip(self._all, boxes, strict=True) if box is not None), None)
        if provider:
            self._providers[name] = provider
        return provider
