"""Daytona as a provider of boxes. See `spawner.runtimes.boxes.provider.Provider`."""

import asyncio
from collections.abc import AsyncIterator, Collection
from dataclasses import replace
from typing import Final

from daytona import AsyncDaytona, AsyncSandbox

from sandherd.concurrency import KeyedLocks
from sandherd.telemetry import logs
from spawner.runtimes.boxes.provider import (
    Abilities,
    Address,
    Box,
    BoxSpec,
    Command,
    CommandResult,
    File,
    ProgramEnd,
    ProviderError,
    ProviderFault,
)
from spawner.runtimes.boxes.retry import DEFAULT_LIMITS, RetryLimits, with_retry
from spawner.runtimes.daytona import creation, sandboxes
from spawner.runtimes.daytona.account import DaytonaAccount
from spawner.runtimes.daytona.faults import within
from spawner.runtimes.daytona.sandboxes import DaytonaOptions, DaytonaState, state_of
from spawner.runtimes.daytona.toolbox import Toolbox

_log: Final = logs.get("runtime.daytona")
_PREVIEW_HEADER: Final = "x-daytona-preview-token"
_MAX_REMOVALS: Final = 3
"""The maximum number of removal requests for a sandbox whose removal does not complete."""


class DaytonaProvider(DaytonaAccount):
    """One account at Daytona. `close` closes `daytona`, too."""

    name = "daytona"
    abilities = Abilities(pause=True, process_limit=False, ports=True)
    of_snapshots = replace(abilities, memory_limit=False)
    """The abilities if sandboxes are created from a snapshot, which defines their memory."""

    def __init__(
        self,
        daytona: AsyncDaytona,
        options: DaytonaOptions,
        worker: bytes | None = None,
        retries: RetryLimits = DEFAULT_LIMITS,
    ) -> None:
        super().__init__(daytona, options, retries)
        self.abilities = self.of_snapshots if options.snapshot else self.abilities
        self._worker = worker
        self._creations: KeyedLocks[str] = KeyedLocks()

    async def create(self, spec: BoxSpec) -> Box:
        """Create the sandbox with its files, and start its program. Continues an incomplete creation."""

        async def once() -> Box:
            # The sandbox may exist, because the reply to an earlier try may have been lost.
            sandbox = await self._find(spec.name) or await self._create_sandbox(spec)
            return await self._start_program(await self._wait_started(sandbox, spec), spec)

        async with self._creations.hold(spec.name):
            return await with_retry(once, self._retries)

    async def get(self, name: str) -> Box | None:
        """The sandbox with this name."""
        sandbox = await with_retry(lambda: self._find(name), self._retries)
        return await self._box_of(sandbox) if sandbox else None

    async def start(self, name: str) -> None:
        """Start the program again."""
        await with_retry(lambda: self._start(name), self._retries)

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end, kill it after `grace` seconds, and stop the sandbox unless that would delete it.

        It is stopped even if its toolbox fails or reports a running program: an agent may have replaced the toolbox.
        """
        sandbox = await with_retry(lambda: self._find(name), self._retries)
        end = await self._end_program(sandbox, grace) if sandbox and state_of(sandbox) == DaytonaState.STARTED else None
        if not (self._options.ephemeral and end):
            await with_retry(lambda: self._stop(name, end), self._retries)

    async def pause(self, name: str) -> None:
        """Pause the sandbox, if its class supports it."""
        await with_retry(lambda: self._pause(name), self._retries)

    async def resume(self, name: str) -> None:
        """Resume the sandbox."""

        async def once() -> None:
            sandbox = await self._existing(name)
            if state_of(sandbox) in {DaytonaState.PAUSED, DaytonaState.PAUSING}:
                with self._errors.faults(f"resuming {name}"):
                    await within(self._options.patience, sandbox.start(0))

        await with_retry(once, self._retries)

    async def remove(self, name: str) -> None:
        """Remove the sandbox. A removal that times out is requested again, at most three times in all."""
        for number in range(1, _MAX_REMOVALS + 1):
            try:
                await with_retry(lambda: self._remove(name), self._retries)
                return
            except ProviderError as error:
                if error.fault is not ProviderFault.TIMED_OUT or number == _MAX_REMOVALS:
                    raise

    async def mark_quarantined(self, name: str) -> None:
        """Set a label on the sandbox."""
        await with_retry(lambda: self._set_labels_of(name, {sandboxes.QUARANTINED: "true"}), self._retries)

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the label that `mark_quarantined` sets."""
        await with_retry(lambda: self._set_labels_of(name, {sandboxes.QUARANTINED: None}), self._retries)

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the sandbox's user."""
        toolbox = await with_retry(lambda: self._toolbox_of(name), self._retries)
        return await toolbox.run(command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`. A stopped sandbox is started for that, but its program is not."""

        async def once() -> None:
            await (await self._toolbox_of(name, wake=True)).write_files(files)

        await with_retry(once, self._retries)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content. A stopped sandbox is started for that, but its program is not."""

        async def once() -> bytes:
            return await (await self._toolbox_of(name, wake=True)).read(path, limit)

        return await with_retry(once, self._retries)

    async def address(self, name: str, port: int) -> Address:
        """The preview link of Daytona to a port. Its token changes with each start of the sandbox."""
        return await with_retry(lambda: self._address(name, port), self._retries)

    async def changes(self) -> AsyncIterator[str]:
        """Yield the names of changed boxes, by polling: Daytona does not report when a program ends."""
        before = await self._states_by_name()
        while True:
            await asyncio.sleep(self._options.poll_interval)
            now = await self._states_by_name()
            for name in sorted(now.keys() | before.keys()):
                if now.get(name) != before.get(name):
                    yield name
            before = now

    async def close(self) -> None:
        """Close the connections."""
        await self._daytona.close()

    # --- one try of each request -------------------------------------------------------------------------------

    async def _create_sandbox(self, spec: BoxSpec) -> AsyncSandbox:
        """Create the sandbox. After a transient error, such as a lost reply, return it if it exists nevertheless."""
        try:
            return await creation.make(self._daytona, spec, self._options, self._errors)
        except ProviderError as error:
            sandbox = await self._find(spec.name) if error.fault is ProviderFault.TRANSIENT else None
            if sandbox is None:
                raise
        return sandbox

    async def _wait_started(self, sandbox: AsyncSandbox, spec: BoxSpec) -> AsyncSandbox:
        """Wait until the sandbox is started. If it failed before its program ran, remove it and raise its error."""
        if state_of(sandbox) in sandboxes.ENDING:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: a previous {spec.name} is still being removed")
        if sandboxes.RUNS in sandbox.labels:
            return sandbox
        if state_of(sandbox) in sandboxes.FAILED:
            error = creation.creation_error(sandbox, spec, self._options, self._errors)
            await self.remove(spec.name)  # changes the sandbox's state, which the error above contains
            raise error
        with self._errors.faults(f"starting {spec.name}"):
            if state_of(sandbox) in sandboxes.RESTING:
                await within(self._options.patience, sandbox.start(0))
            await within(self._options.patience, sandbox.wait_for_sandbox_start(0))
        return sandbox

    async def _start_program(self, sandbox: AsyncSandbox, spec: BoxSpec) -> Box:
        """Start the sandbox's program, unless it was started before."""
        if state_of(sandbox) != DaytonaState.STARTED:
            return sandboxes.box(sandbox, None)
        toolbox = Toolbox(sandbox, self._errors)
        program = await toolbox.program_state()
        if not program.runs:
            await toolbox.set_up(spec, self._worker)
            await self._set_labels(sandbox, {sandboxes.RUNS: "1"})
            program = await toolbox.start(1)
        return sandboxes.box(sandbox, program)

    async def _address(self, name: str, port: int) -> Address:
        sandbox = await self._existing(name)
        if state_of(sandbox) != DaytonaState.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running: it is {state_of(sandbox)}")
        with self._errors.faults(f"reading the address of port {port} of {name}"):
            link = await within(self._options.patience, sandbox.get_preview_link(port))
        return Address(link.url.rstrip("/"), {_PREVIEW_HEADER: link.token} if link.token else {})

    async def _start(self, name: str) -> None:
        box = await self._box_of(await self._existing(name))
        if box.alive:
            return
        toolbox = await self._toolbox_of(name, wake=True)
        run = (await toolbox.program_state()).runs + 1
        await self._set_labels_of(name, {sandboxes.RUNS: str(run), sandboxes.END: None})
        await toolbox.start(run)

    async def _end_program(self, sandbox: AsyncSandbox, grace: float) -> ProgramEnd | None:
        """Request the sandbox's program to end, and return how it ended; None if that is unknown."""
        try:
            return (await Toolbox(sandbox, self._errors).stop(grace, self._retries)).end
        except ProviderError as error:
            _log.warning("sandbox not responding, stopping it", sandbox=sandbox.name, error=str(error))
        return None

    async def _stop(self, name: str, end: ProgramEnd | None) -> None:
        sandbox = await self._find(name)
        if sandbox is None or state_of(sandbox) in sandboxes.ENDING | sandboxes.RESTING | sandboxes.FAILED:
            return
        await self._set_labels(sandbox, {sandboxes.END: sandboxes.format_end(end)})
        with self._errors.faults(f"stopping {name}"):
            await within(self._options.patience, sandbox.stop(0))

    async def _pause(self, name: str) -> None:
        sandbox = await self._existing(name)
        if state_of(sandbox) not in {DaytonaState.PAUSED, DaytonaState.PAUSING}:
            if not (await self._box_of(sandbox)).alive:
                raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running")
            with self._errors.faults(f"pausing {name}"):
                await within(self._options.patience, sandbox.pause(0))
        if state_of(sandbox) != DaytonaState.PAUSED:
            message = f"daytona: {name} is not paused yet: it is {state_of(sandbox)}"
            raise ProviderError(ProviderFault.TRANSIENT, message)

    async def _remove(self, name: str) -> None:
        sandbox = await self._find(name)
        if sandbox is None:
            return
        with self._errors.faults(f"removing {name}, which counts against the quota until it is removed"):
            await within(self._options.patience, sandbox.delete(0, wait=True))
