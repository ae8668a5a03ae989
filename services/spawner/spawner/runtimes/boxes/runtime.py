"""A runtime over any provider of boxes. See `spawner.runtimes.contract.Runtime`."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Final

from sandherd.bus.together import end
from sandherd.telemetry import logs
from spawner.runtimes.boxes import furnishing
from spawner.runtimes.boxes.asking import asked, patiently
from spawner.runtimes.boxes.provider import Address, Addressing, Box, BoxState, Provider
from spawner.runtimes.commands import Command, File, Ran, placed
from spawner.runtimes.contract import (
    NOT_HELD,
    Capabilities,
    Isolation,
    RunEnd,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    Seen,
    WarmPlan,
)

_LOOK_AGAIN: Final = 5.0
_log: Final = logs.get("runtime.boxes")


class BoxRuntime:
    """Sandboxes as boxes of one provider.

    `herd` marks those of this spawner's herd. `nats_url` is where they find the broker, if not where we do.
    """

    def __init__(self, provider: Provider, herd: str, nats_url: str | None = None) -> None:
        self.name = provider.name
        able = provider.abilities
        self.capabilities = Capabilities(
            isolation=Isolation.PROVIDER,
            memory="provider" if able.memory_limit else "none",
            processes="provider" if able.process_limit else "none",
            cores="provider" if able.cpu_limit else NOT_HELD,
            can_pause=able.pause,
            images=True,
            mounts=able.mounts,
            ports=able.ports,
        )
        self._provider = provider
        self._herd = herd
        self._nats_url = nats_url
        self._watching: asyncio.Task[None] | None = None

    def on_exit(self, tell: Callable[[str], None]) -> None:
        """From now on `tell(unit)` is called when a worker has ended."""
        self._watching = asyncio.create_task(self._watch(tell))

    async def prepare(self, plan: WarmPlan) -> None:  # noqa: ARG002  # as the contract has it
        """Not done here: a provider starts boxes for somebody."""
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {self.name} starts no sandboxes beforehand")

    async def create(self, plan: SandboxPlan) -> None:
        """Make the box and start its worker, unless that was done."""
        ports = self._provider.abilities.open_ports
        await asked(self._provider.create(furnishing.box(self._seen_from_there(plan), self._herd, ports)))

    async def recover(self, plan: SandboxPlan) -> None:
        """Start the worker once more, to say what is left unsaid."""
        box = await self._known(plan.unit)
        if box.alive:
            return
        if box.hollow:
            await self.create(plan)
            return
        ports = self._provider.abilities.open_ports
        files = furnishing.files(self._seen_from_there(plan), lost=box.end, ports=ports)
        await asked(self._provider.put(plan.unit, files))
        await asked(self._provider.start(plan.unit))

    async def pause(self, unit: str) -> None:
        """Let every process of the box stand still."""
        if not self.capabilities.can_pause:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {self.name} can't let a sandbox stand still")
        await asked(self._provider.pause(unit))

    async def resume(self, unit: str) -> None:
        """Let it go on."""
        await asked(self._provider.resume(unit))

    async def stop(self, unit: str, grace: float) -> None:
        """Ask the worker to end, wait, then end every process of the box."""
        box = await asked(self._provider.get(unit))
        if box is None:
            return
        if box.state is BoxState.PAUSED:
            await asked(self._provider.resume(unit))
        await asked(self._provider.stop(unit, grace))

    async def leave(self, unit: str) -> None:
        """A box that has ended holds nothing of this host."""

    async def look(self, unit: str) -> Seen | None:
        """The sandbox as it is, or None if there is nothing of it."""
        box = await asked(self._provider.get(unit))
        return None if box is None or box.aside else seen(box)

    async def find_all(self) -> list[Seen]:
        """All boxes of this herd."""
        return [seen(box) for box in await self._find() if not box.aside]

    async def remove(self, unit: str) -> None:
        """Remove the box with all that it holds."""
        await asked(self._provider.remove(unit))

    async def run(self, unit: str, command: Command) -> Ran:
        """Run a command beside the worker. In a box that stands still it would wait, or run all the same."""
        if (await self._known(unit)).state is BoxState.PAUSED:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{unit} stands still: resume it, and ask again")
        return await asked(self._provider.run(unit, command.below(furnishing.ROOT)))

    async def put(self, unit: str, files: Collection[File]) -> None:
        """Put files into the box."""
        await asked(self._provider.put(unit, [file.below(furnishing.ROOT) for file in files]))

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """A file's content, or None if there is none."""
        try:
            return await asked(self._provider.read(unit, placed(path, furnishing.ROOT), limit))
        except RuntimeFailedError as error:
            if error.fault is not RuntimeFault.LOST:
                raise
        await self._known(unit)
        return None

    async def address(self, unit: str, port: int) -> Address:
        """Where a port of the box is."""
        if not (self._provider.abilities.ports and isinstance(self._provider, Addressing)):
            told = f"runtime {self.name}: no port of a sandbox can be reached here"
            raise RuntimeFailedError(RuntimeFault.REFUSED, told)
        return await asked(self._provider.address(unit, port))

    async def keep(self, unit: str) -> None:
        """Leave the box at its provider, stopped and marked: something in it was never said."""
        await asked(self._provider.stop(unit, 0))
        await asked(self._provider.set_aside(unit))
        _log.warning("kept what a sandbox could not say", sandbox=unit, runtime=self.name)

    async def find_kept(self) -> list[str]:
        """The sandboxes that were set aside."""
        return [box.name for box in await self._find() if box.aside]

    async def take_back(self, unit: str) -> None:
        """Let it be seen again, so that it can be recovered."""
        await asked(self._provider.take_back(unit))

    async def close(self) -> None:
        """Stop watching; the boxes live on."""
        await end([self._watching] if self._watching else [])
        await self._provider.close()

    def _seen_from_there(self, plan: SandboxPlan) -> SandboxPlan:
        return replace(plan, nats_url=self._nats_url) if self._nats_url else plan

    async def _find(self) -> Sequence[Box]:
        return await asked(self._provider.find({furnishing.HERD: self._herd}))

    async def _known(self, unit: str) -> Box:
        box = await asked(self._provider.get(unit))
        if box is None:
            raise RuntimeFailedError(RuntimeFault.LOST, f"runtime {self.name} has no sandbox {unit}")
        return box

    async def _watch(self, tell: Callable[[str], None]) -> None:
        async for unit in patiently(self._provider.changes, _LOOK_AGAIN):
            tell(unit)


def seen(box: Box) -> Seen:
    """A box as the spawner sees sandboxes."""
    end = None
    if not box.alive:
        told = box.end
        end = RunEnd(
            told.code if told else None,
            out_of_memory=told.out_of_memory if told else False,
            last_line=(told.reason if told else "") or box.problem,
            gone=box.state is BoxState.FAILED and not box.hollow,
        )
    return Seen(
        box.name,
        alive=box.alive,
        runs=box.runs,
        end=end if box.runs else None,
        project=box.labels.get(furnishing.PROJECT),
        since=box.created_at.timestamp(),
        frozen=box.state is BoxState.PAUSED if box.alive else None,
    )
