"""The pods of several namespaces, by project, as one provider. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from contextlib import aclosing

from spawner.runtimes.boxes.box_files import PROJECT
from spawner.runtimes.boxes.provider import Address, Box, BoxSpec, Command, CommandResult, File
from spawner.runtimes.kubernetes.merged_streams import merged
from spawner.runtimes.kubernetes.provider import PodProvider
from spawner.runtimes.runtime_logs import LogQuery


class Namespaces:
    """Creates a box in the namespace of its project. A box is found in any of the namespaces.

    `usual`: the namespace of projects that are not in `projects`. `close` closes all of them.
    """

    name = "kubernetes"

    def __init__(self, usual: PodProvider, projects: Mapping[str, PodProvider]) -> None:
        self.abilities = usual.abilities
        self._usual = usual
        self._projects = projects
        self._all = list(dict.fromkeys([usual, *projects.values()]))
        self._places: dict[str, PodProvider] = {}
        """Where boxes were last found, by name. Without an entry, all namespaces are searched."""

    async def create(self, spec: BoxSpec) -> Box:
        """Create the box in the namespace of its project, unless another namespace has it."""
        project = spec.labels.get(PROJECT, "")
        place = await self._found(spec.name) or self._projects.get(project, self._usual)
        box = await place.create(spec)
        self._places[spec.name] = place
        return box

    async def get(self, name: str) -> Box | None:
        """The box with this name, or None."""
        return await (await self._place(name)).get(name)

    async def find(self, labels: Mapping[str, str]) -> Sequence[Box]:
        """All boxes with these labels."""
        found = await asyncio.gather(*(pods.find(labels) for pods in self._all))
        self._places = {box.name: pods for pods, boxes in zip(self._all, found, strict=True) for box in boxes}
        return [box for boxes in found for box in boxes]

    async def start(self, name: str) -> None:
        """Start the program of the box again."""
        await (await self._place(name)).start(name)

    async def stop(self, name: str, grace: float) -> None:
        """Request the program of the box to end."""
        await (await self._place(name)).stop(name, grace)

    async def pause(self, name: str) -> None:
        """Always refused."""
        await (await self._place(name)).pause(name)

    async def resume(self, name: str) -> None:
        """Always refused."""
        await (await self._place(name)).resume(name)

    async def remove(self, name: str) -> None:
        """Remove the box."""
        await (await self._place(name)).remove(name)
        self._places.pop(name, None)

    async def mark_quarantined(self, name: str) -> None:
        """Mark the box as quarantined."""
        await (await self._place(name)).mark_quarantined(name)

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the mark."""
        await (await self._place(name)).unmark_quarantined(name)

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command in the box."""
        return await (await self._place(name)).run(name, command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files into the box."""
        await (await self._place(name)).write_files(name, files)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """A file's content."""
        return await (await self._place(name)).read(name, path, limit)

    async def address(self, name: str, port: int) -> Address:
        """The address of a port of the box."""
        return await (await self._place(name)).address(name, port)

    async def logs(self, name: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The log of the box."""
        async with aclosing((await self._place(name)).logs(name, query)) as pieces:
            async for piece in pieces:
                yield piece

    def changes(self) -> AsyncGenerator[str, None]:
        """Yield the names of boxes as they change, in any namespace."""
        return merged([pods.changes() for pods in self._all])

    async def close(self) -> None:
        """Close the connections."""
        for pods in self._all:
            await pods.close()

    async def _place(self, name: str) -> PodProvider:
        """The namespace of a box; the usual one if there is no such box."""
        return self._places.get(name) or await self._found(name) or self._usual

    async def _found(self, name: str) -> PodProvider | None:
        boxes = await asyncio.gather(*(pods.get(name) for pods in self._all))
        found = next((pods for pods, box in zip(self._all, boxes, strict=True) if box is not None), None)
        if found:
            self._places[name] = found
        return found
