"""A runtime whose sandboxes are boxes of a provider. It calls the provider, and converts the provider's errors.

See `spawner.runtimes.contract.Runtime`.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from sandherd.concurrency import cancel_and_wait
from sandherd.telemetry import logs
from spawner.runtimes.boxes import box_files
from spawner.runtimes.boxes.provider import Address, Box, BoxState, PortProvider, Provider, ProviderError
from spawner.runtimes.boxes.runtime_errors import provider_call, runtime_errors
from spawner.runtimes.commands import Command, CommandResult, File, path_below
from spawner.runtimes.contract import (
    NOT_ENFORCED,
    Capabilities,
    Isolation,
    ObservedSandbox,
    RunEnd,
    RuntimeFailedError,
    RuntimeFault,
    SandboxPlan,
    WarmPlan,
)  # fmt: skip
from spawner.runtimes.loopback import LoopbackOwner
from spawner.runtimes.runtime_logs import LogQuery, LogSource

_RETRY_SECONDS: Final = 5.0
_log: Final = logs.get("runtime.boxes")


class BoxRuntime:
    """Sandboxes as boxes of one provider.

    `herd`: the herd's id, with which its boxes are labelled. `nats_url`: the broker's URL for boxes, if it differs from
    the spawner's.
    """

    def __init__(self, provider: Provider, herd: str, nats_url: str | None = None) -> None:
        self.name = provider.name
        abilities = provider.abilities
        self.capabilities = Capabilities(
            isolation=Isolation.PROVIDER,
            memory="provider" if abilities.memory_limit else "none",
            processes="provider" if abilities.process_limit else "none",
            cores="provider" if abilities.cpu_limit else NOT_ENFORCED,
            can_pause=abilities.pause,
            images=True,
            mounts=abilities.mounts,
            volumes_only=abilities.volumes_only,
            mounts_repository=abilities.mounts_repository,
            ports=abilities.ports,
        )
        self._provider = provider
        self._herd = herd
        self._nats_url = nats_url
        self._watch_task: asyncio.Task[None] | None = None

    def on_exit(self, notify: Callable[[str], None]) -> None:
        """Call `notify(unit)` from now on whenever a box changes, for example because its worker has ended."""
        self._watch_task = asyncio.create_task(self._watch(notify))

    async def prepare(self, plan: WarmPlan) -> str | None:  # noqa: ARG002  # the contract's signature
        """Not supported: a provider does not start boxes in advance."""
        raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {self.name} can't start sandboxes in advance")

    async def create(self, plan: SandboxPlan) -> None:
        """Create the box and start its worker, unless that was done before."""
        await self._create(plan)

    async def _create(self, plan: SandboxPlan, *, recovers: bool = False) -> None:
        spec = box_files.box_spec(self._with_sandbox_url(plan), self._herd, self._provider.abilities.open_ports)
        await provider_call(self._provider.create(replace(spec, recovers=recovers)))

    async def recover(self, plan: SandboxPlan) -> None:
        """Start the worker again, to publish the events that are still unpublished."""
        box = await self._existing_box(plan.unit)
        if box.alive:
            return
        if box.hollow:
            await self._create(plan, recovers=True)
            return
        ports = self._provider.abilities.open_ports
        files = box_files.files(self._with_sandbox_url(plan), lost=box.end, ports=ports)
        await provider_call(self._provider.write_files(plan.unit, files))
        await provider_call(self._provider.start(plan.unit))

    async def pause(self, unit: str) -> None:
        """Pause every process of the box."""
        if not self.capabilities.can_pause:
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {self.name} can't pause a sandbox")
        await provider_call(self._provider.pause(unit))

    async def resume(self, unit: str) -> None:
        """Resume every process of the box."""
        await provider_call(self._provider.resume(unit))

    async def stop(self, unit: str, grace: float) -> None:
        """Request the worker to end, wait up to `grace` seconds, then end every process of the box."""
        box = await provider_call(self._provider.get(unit))
        if box is None:
            return
        if box.state is BoxState.PAUSED:
            await provider_call(self._provider.resume(unit))
        await provider_call(self._provider.stop(unit, grace))

    async def release(self, unit: str) -> None:
        """Do nothing: an ended box uses no resources of this host."""

    async def observe(self, unit: str) -> ObservedSandbox | None:
        """The sandbox in its current state, or None if it does not exist or was quarantined."""
        box = await provider_call(self._provider.get(unit))
        return None if box is None or box.quarantined else observed_box(box)

    async def find_all(self) -> list[ObservedSandbox]:
        """All boxes of this herd that were not quarantined."""
        return [observed_box(box) for box in await self._find() if not box.quarantined]

    async def remove(self, unit: str) -> None:
        """Remove the box with all its data."""
        await provider_call(self._provider.remove(unit))

    async def run(self, unit: str, command: Command) -> CommandResult:
        """Run a command beside the worker. A paused box is refused, because the command might block, or run there."""
        if (await self._existing_box(unit)).state is BoxState.PAUSED:
            raise RuntimeFailedError(RuntimeFault.UNAVAILABLE, f"{unit} is paused: resume it, then retry")
        try:
            return await provider_call(self._provider.run(unit, command.below(box_files.ROOT)))
        except RuntimeFailedError as error:
            box = await self._existing_box(unit)
            if box.end is None:
                raise
            raise RuntimeFailedError(error.fault, f"{unit} has ended ({box.end}): {error}") from error

    async def write_files(self, unit: str, files: Collection[File]) -> None:
        """Write files into the box."""
        await provider_call(self._provider.write_files(unit, [file.below(box_files.ROOT) for file in files]))

    async def read(self, unit: str, path: str, limit: int) -> bytes | None:
        """Return a file's content, or None if it does not exist."""
        try:
            return await provider_call(self._provider.read(unit, path_below(path, box_files.ROOT), limit))
        except RuntimeFailedError as error:
            if error.fault is not RuntimeFault.LOST:
                raise
        await self._existing_box(unit)
        return None

    async def address(self, unit: str, port: int) -> Address:
        """The address of a port of the box."""
        if not (self._provider.abilities.ports and isinstance(self._provider, PortProvider)):
            message = f"runtime {self.name}: no port of a sandbox can be reached"
            raise RuntimeFailedError(RuntimeFault.REFUSED, message)
        return await provider_call(self._provider.address(unit, port))

    def port_refusal(self, unit: str, port: int) -> str:
        """Why a port of a box's loopback interface is a port of its host; empty if it is not."""
        return self._provider.port_refusal(unit, port) if isinstance(self._provider, LoopbackOwner) else ""

    async def logs(self, unit: str, query: LogQuery) -> AsyncIterator[bytes]:
        """The output of the box's program, as its provider stores it."""
        if not isinstance(self._provider, LogSource):
            raise RuntimeFailedError(RuntimeFault.REFUSED, f"runtime {self.name} stores no log of a sandbox")
        with runtime_errors():
            async with aclosing(self._provider.logs(unit, query)) as pieces:  # type: ignore[type-var]  # a generator
                async for piece in pieces:
                    yield piece

    async def quarantine(self, unit: str) -> None:
        """Stop the box, which contains undelivered events, and quarantine it at its provider."""
        await provider_call(self._provider.stop(unit, 0))
        await provider_call(self._provider.mark_quarantined(unit))
        _log.warning("sandbox with undelivered events quarantined", sandbox=unit, runtime=self.name)

    async def list_quarantined(self) -> list[str]:
        """The sandboxes that were quarantined."""
        return [box.name for box in await self._find() if box.quarantined]

    async def unquarantine(self, unit: str) -> None:
        """Undo `quarantine`, so that the sandbox is found again and can be recovered."""
        await provider_call(self._provider.unmark_quarantined(unit))

    async def close(self) -> None:
        """Stop watching for changes and close the provider; boxes continue to run."""
        await cancel_and_wait([self._watch_task] if self._watch_task else [])
        await self._provider.close()

    def _with_sandbox_url(self, plan: SandboxPlan) -> SandboxPlan:
        return replace(plan, nats_url=self._nats_url) if self._nats_url else plan

    async def _find(self) -> Sequence[Box]:
        return await provider_call(self._provider.find({box_files.HERD: self._herd}))

    async def _existing_box(self, unit: str) -> Box:
        box = await provider_call(self._provider.get(unit))
        if box is None:
            raise RuntimeFailedError(RuntimeFault.LOST, f"runtime {self.name} has no sandbox {unit}")
        return box

    async def _watch(self, notify: Callable[[str], None]) -> None:
        async for unit in restarting_changes(self._provider.changes, _RETRY_SECONDS):
            notify(unit)


def observed_box(box: Box) -> ObservedSandbox:
    """Convert a box to an observed sandbox."""
    end = None
    if not box.alive:
        box_end = box.end
        end = RunEnd(
            box_end.code if box_end else None,
            out_of_memory=box_end.out_of_memory if box_end else False,
            last_line=(box_end.reason if box_end else "") or box.problem,
            files_deleted=box.state is BoxState.FAILED and not box.hollow,
        )
    return ObservedSandbox(
        box.name,
        alive=box.alive,
        runs=box.runs,
        end=end if box.runs else None,
        project=box.labels.get(box_files.PROJECT),
        since=box.created_at.timestamp(),
        frozen=box.state is BoxState.PAUSED if box.alive else None,
        disruption=box.disruption,
    )


async def restarting_changes(changes: Callable[[], AsyncIterator[str]], wait: float) -> AsyncIterator[str]:
    """A provider's stream of changes, which is restarted `wait` seconds after it ended or failed. Never ends."""
    while True:
        try:
            async with aclosing(changes()) as names:  # type: ignore[type-var]  # every provider's is a generator
                async for name in names:
                    yield name
        except ProviderError as error:
            _log.warning("provider change stream interrupted, restarting", error=str(error))
        except Exception as error:  # noqa: BLE001  # else no stream would be left, and ends of boxes would be missed
            _log.error("provider change stream failed, restarting", exc_info=error)
        await asyncio.sleep(wait)
