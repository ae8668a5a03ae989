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
from spawner.runtimes.boxes.retry import USUAL, RetryLimits, with_retry
from spawner.runtimes.daytona import creation, sandboxes
from spawner.runtimes.daytona.account import DaytonaAccount
from spawner.runtimes.daytona.faults import within
from spawner.runtimes.daytona.sandboxes import DaytonaOptions, DaytonaState, state_of
from spawner.runtimes.daytona.toolbox import Toolbox

_log: Final = logs.get("runtime.daytona")
_SHOWN: Final = "x-daytona-preview-token"
_REMOVALS: Final = 3
"""The maximum number of removal requests for a sandbox whose removal does not complete."""


class DaytonaProvider(DaytonaAccount):
    """One account at Daytona. `close` closes `daytona`, too."""

    name = "daytona"
    abilities = Abilities(pause=True, process_limit=False, ports=True)
    of_snapshots = replace(abilities, memory_limit=False)
    """The abilities with a snapshot, which defines its own memory."""

    def __init__(
        self, daytona: AsyncDaytona, kind: DaytonaOptions, bundled: bytes | None = None, patience: RetryLimits = USUAL
    ) -> None:
        super().__init__(daytona, kind, patience)
        self.abilities = self.of_snapshots if kind.snapshot else self.abilities
        self._bundled = bundled
        self._creations: KeyedLocks[str] = KeyedLocks()

    async def create(self, spec: BoxSpec) -> Box:
        """Create the sandbox with its files, and start its program. Continues an incomplete creation.

        Every try first checks whether the sandbox exists, because a reply may have been lost.
        """

        async def once() -> Box:
            sandbox = await self._find(spec.name) or await self._create_sandbox(spec)
            return await self._start_program(await self._wait_started(sandbox, spec), spec)

        async with self._creations.hold(spec.name):
            return await with_retry(once, self._patience)

    async def get(self, name: str) -> Box | None:
        """The sandbox with this name."""
        sandbox = await with_retry(lambda: self._find(name), self._patience)
        return await self._box_of(sandbox) if sandbox else None

    async def start(self, name: str) -> None:
        """Start the program again."""
        await with_retry(lambda: self._start(name), self._patience)

    async def stop(self, name: str, grace: float) -> None:
        """Request the program to end, kill it after `grace` seconds, and stop the sandbox unless that would delete it.

        It is stopped even if its toolbox fails or reports otherwise: its agent may have replaced the toolbox.
        """
        sandbox = await with_retry(lambda: self._find(name), self._patience)
        end = await self._end_program(sandbox, grace) if sandbox and state_of(sandbox) == DaytonaState.STARTED else None
        if not (self._kind.ephemeral and end):
            await with_retry(lambda: self._stop(name, end), self._patience)

    async def pause(self, name: str) -> None:
        """Pause the sandbox, if its class supports it."""
        await with_retry(lambda: self._pause(name), self._patience)

    async def resume(self, name: str) -> None:
        """Resume the sandbox."""

        async def once() -> None:
            sandbox = await self._existing(name)
            if state_of(sandbox) in {DaytonaState.PAUSED, DaytonaState.PAUSING}:
                with self._errors.faults(f"resuming {name}"):
                    await within(self._kind.patience, sandbox.start(0))

        await with_retry(once, self._patience)

    async def remove(self, name: str) -> None:
        """Remove the sandbox. A removal that times out is requested again, at most three times in all."""
        for tried in range(1, _REMOVALS + 1):
            try:
                await with_retry(lambda: self._remove(name), self._patience)
                return
            except ProviderError as error:
                if error.fault is not ProviderFault.TIMED_OUT or tried == _REMOVALS:
                    raise

    async def mark_quarantined(self, name: str) -> None:
        """Set a label on the sandbox."""
        await with_retry(lambda: self._label(name, {sandboxes.QUARANTINED: "true"}), self._patience)

    async def unmark_quarantined(self, name: str) -> None:
        """Remove the label that `mark_quarantined` sets."""
        await with_retry(lambda: self._label(name, {sandboxes.QUARANTINED: None}), self._patience)

    async def run(self, name: str, command: Command) -> CommandResult:
        """Run a command as the sandbox's user."""
        toolbox = await with_retry(lambda: self._toolbox_of(name), self._patience)
        return await toolbox.run(command)

    async def write_files(self, name: str, files: Collection[File]) -> None:
        """Write files below `ROOT`; a stopped sandbox is started for that, but not its program."""

        async def once() -> None:
            await (await self._toolbox_of(name, wake=True)).write_files(files)

        await with_retry(once, self._patience)

    async def read(self, name: str, path: str, limit: int) -> bytes:
        """Return a file's content; a stopped sandbox is started for that, but not its program."""

        async def once() -> bytes:
            return await (await self._toolbox_of(name, wake=True)).read(path, limit)

        return await with_retry(once, self._patience)

    async def address(self, name: str, port: int) -> Address:
        """Daytona's preview link to a port. Its token changes with each start."""
        return await with_retry(lambda: self._address(name, port), self._patience)

    async def changes(self) -> AsyncIterator[str]:
        """Yield the names of changed boxes, by polling: Daytona does not report when a program ends."""
        before = await self._states_by_name()
        while True:
            await asyncio.sleep(self._kind.poll_interval)
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
            return await creation.make(self._daytona, spec, self._kind, self._errors)
        except ProviderError as error:
            found = await self._find(spec.name) if error.fault is ProviderFault.TRANSIENT else None
            if found is None:
                raise
        return found

    async def _wait_started(self, sandbox: AsyncSandbox, spec: BoxSpec) -> AsyncSandbox:
        """Wait until the sandbox is started. If it failed before its program ran, remove it and raise its error."""
        if state_of(sandbox) in sandboxes.ENDING:
            raise ProviderError(ProviderFault.TRANSIENT, f"daytona: a previous {spec.name} is still being removed")
        if sandboxes.RUNS in sandbox.labels:
            return sandbox
        if state_of(sandbox) in sandboxes.FAILED:
            error = creation.failed(sandbox, spec, self._kind, self._errors)
            await self.remove(spec.name)  # updates the sandbox's state, from which the error was read
            raise error
        with self._errors.faults(f"starting {spec.name}"):
            if state_of(sandbox) in sandboxes.RESTING:
                await within(self._kind.patience, sandbox.start(0))
            await within(self._kind.patience, sandbox.wait_for_sandbox_start(0))
        return sandbox

    async def _start_program(self, sandbox: AsyncSandbox, spec: BoxSpec) -> Box:
        """Start the sandbox's program, unless it was started before."""
        if state_of(sandbox) != DaytonaState.STARTED:
            return sandboxes.box(sandbox, None)
        toolbox = Toolbox(sandbox, self._errors)
        life = await toolbox.life()
        if not life.runs:
            await toolbox.set_up(spec, self._bundled)
            await self._relabel(sandbox, {sandboxes.RUNS: "1"})
            life = await toolbox.start(1)
        return sandboxes.box(sandbox, life)

    async def _address(self, name: str, port: int) -> Address:
        sandbox = await self._existing(name)
        if state_of(sandbox) != DaytonaState.STARTED:
            raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running: it is {state_of(sandbox)}")
        with self._errors.faults(f"reading the address of port {port} of {name}"):
            found = await within(self._kind.patience, sandbox.get_preview_link(port))
        return Address(found.url.rstrip("/"), {_SHOWN: found.token} if found.token else {})

    async def _start(self, name: str) -> None:
        box = await self._box_of(await self._existing(name))
        if box.alive:
            return
        toolbox = await self._toolbox_of(name, wake=True)
        life = await toolbox.life()
        await self._label(name, {sandboxes.RUNS: str(life.runs + 1), sandboxes.END: None})
        await toolbox.start(life.runs + 1)

    async def _end_program(self, sandbox: AsyncSandbox, grace: float) -> ProgramEnd | None:
        """Request the sandbox's program to end, and return how it ended; None if that is unknown."""
        try:
            return (await Toolbox(sandbox, self._errors).stop(grace, self._patience)).end
        except ProviderError as error:
            _log.warning("sandbox not responding, stopping it", sandbox=sandbox.name, error=str(error))
        return None

    async def _stop(self, name: str, end: ProgramEnd | None) -> None:
        sandbox = await self._find(name)
        if sandbox is None or state_of(sandbox) in sandboxes.ENDING | sandboxes.RESTING | sandboxes.FAILED:
            return
        await self._relabel(sandbox, {sandboxes.END: sandboxes.format_end(end)})
        with self._errors.faults(f"stopping {name}"):
            await within(self._kind.patience, sandbox.stop(0))

    async def _pause(self, name: str) -> None:
        sandbox = await self._existing(name)
        if state_of(sandbox) not in {DaytonaState.PAUSED, DaytonaState.PAUSING}:
            if not (await self._box_of(sandbox)).alive:
                raise ProviderError(ProviderFault.REFUSED, f"daytona: {name} is not running")
            with self._errors.faults(f"pausing {name}"):
                await within(self._kind.patience, sandbox.pause(0))
        if state_of(sandbox) != DaytonaState.PAUSED:
            raise ProviderError(
                ProviderFault.TRANSIENT, f"daytona: {name} is not paused yet: it is {state_of(sandbox)}"
            )

    async def _remove(self, name: str) -> None:
        sandbox = await self._find(name)
        if sandbox is None:
            return
        with self._errors.faults(
            f"removing {name}, which counts against the quota until it is removed; the removal was retried"
        ):
            await within(self._kind.patience, sandbox.delete(0, wait=True))
